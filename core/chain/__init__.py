"""All bands of one arena: takes that succeed whole or change nothing, relief, and the answer to "does it fit?".

Beside the chain: who mints ids, what moves, its reasons, its estimates, its picture, its checks.
"""
