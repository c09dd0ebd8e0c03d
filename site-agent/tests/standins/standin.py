#!/usr/bin/env python3
"""Stands in for a command of a scheduler: standin.py COMMAND ARGUMENT…

STANDIN_FAMILY names the scheduler (`pbs`, `lsf`, `cobalt`, `flux`, `slurm`), whose commands are in the file of that
name; STANDIN_QUEUE is the folder with its queue (cluster.py). Scripts really run, on this machine.
"""
import importlib
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    family = importlib.import_module(os.environ["STANDIN_FAMILY"])
    importlib.import_module("cluster").call(family.COMMANDS, family.AWAY)
