#!/usr/bin/env python3
"""Makes images of digits in the format of MNIST, from a seed, for trainings where nothing can be downloaded.

    testbed/digits.py DIRECTORY [--images 20000] [--held-out 2000] [--noise 60] [--seed 1]

Every image is one of ten digits of a 5 × 7 font on 28 × 28 pixels, turned by up to 25 degrees, sheared, stretched, moved
by up to 4 pixels, and put under uniform noise. The four files are those that `gleaner train --data mnist:DIRECTORY` reads.
"""

import argparse
import math
import pathlib
import random
import struct

# One hexadecimal number of five bits for each row of a digit.
FONT = [
    "0E 11 13 15 19 11 0E", "04 0C 04 04 04 04 0E", "0E 11 01 02 04 08 1F", "1F 02 04 02 01 11 0E", "02 06 0A 12 1F 02 02",
    "1F 10 1E 01 01 11 0E", "06 08 10 1E 11 11 0E", "1F 01 02 04 08 08 08", "0E 11 11 0E 11 11 0E", "0E 11 11 0F 01 02 0C",
]
SIDE = 28
# The file that is written last: where it is, all of them are.
LAST = "t10k-labels-idx1-ubyte"
INK = 110


def bitmap(rows):
    """The digit's cells with two empty cells around it, as a list of rows."""
    cells = [[0] * 4 + [int(row, 16) >> bit & 1 for bit in (4, 3, 2, 1, 0)] + [0] * 4 for row in rows.split()]
    empty = [[0] * 13 for _ in range(4)]
    return empty + cells + empty


DIGITS = [bitmap(rows) for rows in FONT]


def image(chance, digit, noise):
    """One image as bytes: for every pixel the cell that it came from, and noise."""
    angle = math.radians(chance.uniform(-25, 25))
    shear = chance.uniform(-0.2, 0.2)
    # Cells per pixel: the digit is 12 to 20 pixels high.
    across, down = chance.uniform(0.35, 0.58), chance.uniform(0.35, 0.58)
    right, below = chance.uniform(-4, 4), chance.uniform(-4, 4)
    xx, xy = across * (math.cos(angle) + shear * math.sin(angle)), across * (math.sin(angle) - shear * math.cos(angle))
    yx, yy = -down * math.sin(angle), down * math.cos(angle)
    cells = DIGITS[digit]
    grey = iter(chance.randbytes(SIDE * SIDE))
    pixels = bytearray()
    middle = (SIDE - 1) / 2
    for row in range(SIDE):
        y = row - middle - below
        # Half a cell is added, since int() rounds down; outside of the bitmap is nothing.
        column_x, column_y = xy * y + 6.5, yy * y + 7.5
        for column in range(SIDE):
            x = column - middle - right
            at_x, at_y = int(xx * x + column_x), int(yx * x + column_y)
            ink = INK if 0 <= at_x < 13 and 0 <= at_y < 15 and cells[at_y][at_x] else 0
            value = 73 + ink + noise * (next(grey) - 128) // 128
            pixels.append(0 if value < 0 else 255 if value > 255 else value)
    return bytes(pixels)


def write(directory, name, count, noise, chance):
    labels = bytes(chance.randrange(10) for _ in range(count))
    pixels = b"".join(image(chance, label, noise) for label in labels)
    (directory / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, SIDE, SIDE) + pixels)
    (directory / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)


def make(directory, images=20_000, held_out=2_000, noise=60, seed=1):
    """Makes the four files."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    write(directory, "train", images, noise, chance)
    write(directory, "t10k", held_out, noise, chance)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--held-out", type=int, default=2_000)
    parser.add_argument("--noise", type=int, default=60, help="how far it moves a pixel; ink moves it by 110")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make(given.directory, given.images, given.held_out, given.noise, given.seed)
