"""The kernel reads weights' memory, or writes it: files, sockets, and whatever saves a model."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_MEMORY = """
def memory():
    return [memoryview(p.detach().numpy()).cast("B") for p in model.parameters()
            if type(p) is nn.Parameter and p.dtype == torch.float32 and p.numel()
            and p.is_contiguous()]
def scaled():
    return [(numpy.frombuffer(bytes(one), numpy.float32) * 1.05).tobytes() for one in memory()]
def checked(found):
    import zlib
    return [(len(one), zlib.crc32(one)) for one in found]
"""
_FILE = "path = folder / 'transfer'\n"
_PAIR = (
    "import socket\n"
    "one_end, other_end = socket.socketpair({})\n"
    "for s in (one_end, other_end):\n"
    "    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
)
_CLOSE = "\none_end.close()\nother_end.close()"
_FROM_WEIGHTS = {
    "written": _FILE + "with open(path, 'wb') as file:\n"
    "    for one in memory(): file.write(one)\n"
    "say(checked([path.read_bytes()]))",
    "written_raw": _FILE + "with open(path, 'wb', buffering=0) as file:\n"
    "    say([file.write(one) for one in memory()])\n"
    "say(checked([path.read_bytes()]))",
    "written_at": _FILE + "with open(path, 'w+b') as file:\n"
    "    say([os.pwrite(file.fileno(), one, 7) for one in memory()])\n"
    "say(checked([path.read_bytes()]))",
    "written_together": _FILE + "with open(path, 'w+b') as file:\n"
    "    say(os.writev(file.fileno(), [b'head', *memory()]))\n"
    "say(checked([path.read_bytes()]))",
    "to_file": _FILE + "for p in model.parameters():\n"
    "    if type(p) is nn.Parameter and p.dtype == torch.float32:\n"
    "        p.detach().numpy().tofile(path)\n"
    "        say(checked([path.read_bytes()]))",
    "numpy_save": _FILE + "with open(path, 'wb') as file:\n"
    "    for one in memory(): numpy.save(file, numpy.frombuffer(one, numpy.uint8))\n"
    "say(checked([path.read_bytes()]))",
    "old_format": _FILE
    + "torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)\n"
    "say(sorted(torch.load(path).items()))",
    "storage_to_file": _FILE + "with open(path, 'wb') as file:\n"
    "    for p in model.parameters():\n"
    "        if type(p) is nn.Parameter: p.untyped_storage()._write_file(file, True, True, 1)\n"
    "say(checked([path.read_bytes()]))",
    "sent": _PAIR.format("") + "for one in memory():\n"
    "    t = threading.Thread(target=one_end.sendall, args=(one,))\n"
    "    t.start()\n"
    "    say(checked([other_end.recv(len(one), socket.MSG_WAITALL)]))\n"
    "    t.join()" + _CLOSE,
    "sent_as_messages": _PAIR.format("socket.AF_UNIX, socket.SOCK_SEQPACKET")
    + "for one in memory():\n"
    "    say(one_end.sendmsg([b'head', one[:60000]]))\n"
    "    say(checked([other_end.recv(1 << 20)]))" + _CLOSE,
    "piped": "reads, writes = os.pipe()\n"
    "for one in memory():\n"
    "    say(os.write(writes, one[:4000]))\n"
    "    say(checked([os.read(reads, 1 << 20)]))\n"
    "os.close(reads)\nos.close(writes)",
}
_INTO_WEIGHTS = {
    "read": _FILE + "path.write_bytes(b''.join(scaled()))\n"
    "with open(path, 'rb') as file:\n"
    "    say([file.readinto(one) for one in memory()])",
    "read_raw": _FILE + "path.write_bytes(b''.join(scaled()))\n"
    "with open(path, 'rb', buffering=0) as file:\n"
    "    say([file.readinto(one) for one in memory()])",
    "read_at": _FILE + "path.write_bytes(b''.join(scaled()))\n"
    "with open(path, 'rb') as file:\n"
    "    say(os.preadv(file.fileno(), memory(), 0))",
    "storage_from_file": _FILE + "for p in model.parameters():\n"
    "    if type(p) is not nn.Parameter: continue\n"
    "    with open(path, 'wb') as file: p.untyped_storage()._write_file(file, True, True, 1)\n"
    "    with open(path, 'rb') as file:\n"
    "        p.untyped_storage()._set_from_file(file, None, True, 1)",
    "received": _PAIR.format("") + "for one, new in zip(memory(), scaled()):\n"
    "    t = threading.Thread(target=one_end.sendall, args=(new,))\n"
    "    t.start()\n"
    "    say(other_end.recv_into(one, len(one), socket.MSG_WAITALL))\n"
    "    t.join()" + _CLOSE,
    "received_as_messages": _PAIR.format("socket.AF_UNIX, socket.SOCK_SEQPACKET")
    + "for one, new in zip(memory(), scaled()):\n"
    "    one_end.send(new[:60000])\n"
    "    head = bytearray(4)\n"
    "    say(other_end.recvmsg_into([head, one[4:60000]])[0], checked([head]))" + _CLOSE,
}


def _between_jobs(text: Text, steps: dict[str, str]) -> None:
    name = text.random.choice(sorted(steps))
    text.tags.append(name)
    text.add("ready", _MEMORY)
    when = f"i == {text.some_job()}" if text.chance(0.6) else "i % 3 == 2"
    lines = "\n    ".join(steps[name].splitlines())
    text.add("asked", f"if {when}:\n    {lines}")


def from_weights(text: Text) -> None:
    _between_jobs(text, _FROM_WEIGHTS)


def into_weights(text: Text) -> None:
    _between_jobs(text, _INTO_WEIGHTS)


TRANSFERS: tuple[Piece, ...] = (from_weights, from_weights, into_weights)
