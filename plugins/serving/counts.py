"""What the loop has done so far, as plain numbers that anybody may read at any time."""

import attrs


@attrs.define
class Counts:
    """Counters that only grow. Requests, but for the last lines: tokens, steps and checkpoints.

    ``admitted`` counts every start, one after a retraction too; ``waits`` requests that first started later than in
    the step of their arrival; ``retractions`` and ``preemptions`` the times that one was stopped for want of memory,
    and for another of a higher priority. ``prompt_tokens`` are those that admitted requests had to have before they
    could go on, and ``cached_tokens`` those of them that a prefix cache had. ``checkpoints_taken`` are the copies of
    states that the cache was given, also where it had one of the same tokens already and dropped this one;
    ``checkpoints_skipped`` the grid points that were passed without.
    """

    admitted: int = 0
    waits: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    aborts: int = 0
    clipped: int = 0
    retractions: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forwarded_tokens: int = 0
    generated_tokens: int = 0
    checkpoints_taken: int = 0
    checkpoints_skipped: int = 0
