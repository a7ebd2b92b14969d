"""Who still touches which page: forwards in flight, copies, transfers; and the one table of who waits for what."""
