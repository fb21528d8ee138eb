#!/usr/bin/env python3
"""TensorBoard's own code on event files; needs the packages tensorboard, protobuf, numpy, absl-py.

read FOLDER    what TensorBoard's reader finds there, as JSON
golden FILE    writes the records that tests/report/event_file.cpp writes, too, by TensorBoard's protos and record writer
check          exit status 0 if the packages are there"""
import io
import json
import sys

try:
    from tensorboard.backend.event_processing import plugin_event_accumulator
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams import metadata as hparams_metadata
    from tensorboard.plugins.hparams import plugin_data_pb2, summary_v2
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util import tensor_util
except ImportError as missing:
    sys.exit(f"no TensorBoard here: {missing}")


def read(folder):
    run = plugin_event_accumulator.EventAccumulator(folder, size_guidance={plugin_event_accumulator.TENSORS: 0})
    run.Reload()
    found = {"scalars": {}, "texts": {}, "hparams": {}}
    for tag in run.PluginTagToContent("scalars") if "scalars" in run.ActivePlugins() else ():
        found["scalars"][tag] = [[it.step, repr(float(tensor_util.make_ndarray(it.tensor_proto)))] for it in run.Tensors(tag)]
    for tag in run.PluginTagToContent("text") if "text" in run.ActivePlugins() else ():
        found["texts"][tag] = [[it.step, tensor_util.make_ndarray(it.tensor_proto).item().decode()] for it in run.Tensors(tag)]
    if "hparams" in run.ActivePlugins():
        content = run.PluginTagToContent("hparams")[hparams_metadata.SESSION_START_INFO_TAG]
        info = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
        found["hparams"] = {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}
    print(json.dumps(found))


def golden(path):
    buffer = io.BytesIO()
    records = RecordWriter(buffer)

    def write(**fields):
        records.write(event_pb2.Event(**fields).SerializeToString(deterministic=True))

    Value = summary_pb2.Summary.Value
    write(wall_time=1700000000.25, file_version="brain.Event:2")
    write(wall_time=1700000001.5, step=3, summary=summary_pb2.Summary(value=[Value(tag="acc", simple_value=-1.25), Value(tag="loss", simple_value=0.1)]))
    text = Value(tag="note", metadata={"plugin_data": {"plugin_name": "text"}},
                 tensor={"dtype": "DT_STRING", "string_val": ["h\u00e9llo".encode()], "tensor_shape": {"dim": [{"size": 1}]}})
    write(wall_time=1700000002.0, step=300, summary=summary_pb2.Summary(value=[text]))
    start = summary_v2.hparams_pb({"layers": 3, "lr": 0.5, "name": "a", "shuffle": False}, trial_id="t", start_time_secs=12.5)
    content = plugin_data_pb2.HParamsPluginData.FromString(start.value[0].metadata.plugin_data.content)
    content.ClearField("version")
    content.session_start_info.ClearField("group_name")
    start.value[0].metadata.plugin_data.content = content.SerializeToString(deterministic=True)
    write(wall_time=1700000003.0, summary=start)
    write(wall_time=1700000004.0, step=-1, summary=summary_pb2.Summary(value=[Value(tag="none", simple_value=float("inf"))]))
    with open(path, "wb") as file:
        file.write(buffer.getvalue())


if sys.argv[1:2] == ["read"]:
    read(sys.argv[2])
elif sys.argv[1:2] == ["golden"]:
    golden(sys.argv[2])
elif sys.argv[1:] != ["check"]:
    sys.exit(__doc__)
