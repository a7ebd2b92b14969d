"""An answer that gives its reasons: the layout, what moves at most, what is waited for, or what is short."""

