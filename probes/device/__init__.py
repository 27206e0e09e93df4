"""What a GPU is and would do, without one: nothing here imports CUDA.

facts.py, profiles/   a GPU's facts, each with its source; one TOML a device
occupancy.py          blocks per SM, waves, what fits beside a predecessor's last wave
pipeline.py           a ring of stages in shared memory: its geometry on a device
launch_bounds.py      blocks per SM that each kernel form is compiled for
tuning.py, tuned/     launch geometries that a sweep chose; one TOML a device
resources.py          registers, shared memory and spills as compilers gave them (resources.toml)
model.py              a launch's time out of all that, predicted
"""
