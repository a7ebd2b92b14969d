"""Traffic without a model: traces of many formats, a cost model of a step, and the loop over the host backend."""
