"""What a scheduler holds: request rows and batched steps over them, whose a page is, and the ids of each step."""
