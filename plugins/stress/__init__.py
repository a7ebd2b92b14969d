"""The harness: operations, a stage that plays them on a device, random worlds, and scenario files."""
