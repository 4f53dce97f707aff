#!/usr/bin/env python3
"""Scalars for the writers of other packages, with stand-ins. tests/integrations has the real ones."""
import unittest

from environment import use

use()
import headroom as tf


class Writer:
    def __init__(self):
        self.found = []


class TensorBoard(Writer):
    def add_scalar(self, name, value, step):
        self.found.append((name, value, step))


class Run(Writer):
    def log(self, values, step=None):
        self.found += [(name, value, step) for name, value in values.items()]


class Logger(Writer):
    def log_metrics(self, metrics, step=None):
        self.found += [(name, value, step) for name, value in metrics.items()]


class Scalars(unittest.TestCase):
    def test_they_are_the_statistics_of_the_device(self):
        kept = tf.ones([256, 256])
        values = tf.scalars()
        stats = tf.device_stats("GPU:0")
        self.assertEqual((values["headroom/bytes_in_use"], type(values["headroom/num_allocs"])), (kept.shape.num_elements() * 4, float))
        self.assertEqual({name: stats[name.partition("/")[2]] for name in values}, values)
        self.assertEqual(tf.scalars("CPU:0")["headroom/bytes_in_use"], 0)

    def test_every_kind_of_writer_gets_them(self):
        called = []
        for writer in (TensorBoard(), Run(), Logger()):
            values = tf.log_scalars(writer, 3)
            self.assertEqual(writer.found, [(name, value, 3) for name, value in values.items()])
        values = tf.log_scalars(lambda scalars, step: called.append((scalars, step)))
        self.assertEqual(called, [(values, None)])

    def test_mistakes(self):
        for wrong in (3, None, "writer"):
            with self.assertRaisesRegex(TypeError, "writer is .*SummaryWriter"):
                tf.log_scalars(wrong, 1)
        for wrong in ("1", 1.5, True):
            with self.assertRaisesRegex(TypeError, "step is .*100"):
                tf.log_scalars(TensorBoard(), wrong)


if __name__ == "__main__":
    unittest.main()
