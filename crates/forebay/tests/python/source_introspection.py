#!/usr/bin/python3
from __future__ import annotations

import dataclasses
import inspect
import pickle
import traceback

kept: int = 1


@dataclasses.dataclass
class Point:
    x: Undefined


print('Content-Type: text/plain\n')
print(pickle.loads(pickle.dumps(Point(3))), __annotations__)
print(inspect.getsource(Point))
try:
    1 / 0
except ZeroDivisionError:
    print([frame.name for frame in traceback.extract_tb(__import__('sys').exc_info()[2])])
