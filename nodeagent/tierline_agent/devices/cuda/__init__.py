"""NVIDIA GPUs, through the driver API.

* `driver`: calls with errors that say what was attempted; `context`: one device's primary context
* `inventory`: which GPUs there are, by NVML; `xids`: errors that it reports
* `kept`: the calls of the copy path, made without letting go of the interpreter's lock
* `memory`: extents; `same_file`: what makes one recognisable
* `pinned`: host memory that copies come from; `words`: flag words
* `copies`: one CUDA stream of copies; `stream`: a job's extents; `loads`: everything else's
* `device`: all of it as a `Device`
"""
