"""What a scheduler holds: request rows, batched steps over them, and the ids of each step."""
