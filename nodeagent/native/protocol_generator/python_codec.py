"""The Python codec: tierline_agent/transport/protocol.py."""

from __future__ import annotations

from protocol_generator.spec import BANNER, Field, Layout, Spec, template, wrap

STRUCT_CODES = {"u16": "H", "u32": "I", "u64": "Q"}


def py_format(layout: Layout) -> str:
    """The struct format of the fixed part."""
    codes = [STRUCT_CODES[f.type] if f.is_integer else f"{f.size}s" for f in layout.fields]
    return "<" + "".join(codes)


def py_type(field: Field) -> str:
    """A field's type in its dataclass."""
    if field.is_text:
        return "str"
    if field.type == "digest":
        return "bytes"
    return str(field.rules.get("enum") or field.rules.get("flags") or "int")


def py_item_type(of: str) -> str:
    """An array element's type in its dataclass."""
    return {"u32": "int", "digest": "bytes"}.get(of, of)


def py_visible(layout: Layout) -> tuple[Field, ...]:
    """Fields of the dataclass: without constants and without the array's count."""
    count = layout.array["count"] if layout.array else None
    return tuple(f for f in layout.shown if f.name != count)


def py_pack_argument(layout: Layout, field: Field) -> str:
    """The expression that is packed for a field."""
    where = f'"{layout.name}.{field.name}"'
    if field.constant is not None:
        return f"{field.constant:#x}"
    if layout.array and field.name == layout.array["count"]:
        return f"len(self.{layout.array['name']})"
    if field.is_text:
        return f"_raw_text(self.{field.name}, {field.size}, {where})"
    if field.type == "digest":
        return f"_raw_digest(self.{field.name}, {where})"
    return f"self.{field.name}"


def py_value(layout: Layout, field: Field) -> str:
    """The expression that a decoded field becomes."""
    if field.is_text:
        return f'_text({field.name}, "{layout.name}.{field.name}")'
    kind = py_type(field)
    return field.name if kind in ("int", "bytes") else f"{kind}({field.name})"


def py_checks(spec: Spec, layout: Layout) -> list[str]:
    """Rules over local variables named like the fields."""
    lines = []

    def refuse_if(condition: str, code: str, complaint: str) -> None:
        where = f'"{layout.name}{complaint}"'
        error = f"_malformed({where})"
        if code != "MALFORMED":
            error = f"ProtocolError(ErrorCode.{code}, {where})"
        lines.append(f"        if {condition}:")
        lines.append(f"            raise {error}")

    for field in layout.fields:
        if field.constant is not None and field.code == "MALFORMED":
            refuse_if(
                f"{field.name} != {field.constant:#x}",
                field.code,
                f".{field.name} is not {field.constant:#x}",
            )
        for _, condition, complaint in field.conditions(spec):
            refuse_if(condition.format(v=field.name), field.code, f".{field.name} {complaint}")
    return lines


def py_self_checks(spec: Spec, layout: Layout) -> list[str]:
    """The same rules over a dataclass, for encoding."""
    lines = []
    for field in layout.shown:
        value = f"self.{field.name}"
        if layout.array and field.name == layout.array["count"]:
            value = f"len(self.{layout.array['name']})"
        for _, condition, complaint in field.conditions(spec):
            lines.append(f"        if {condition.format(v=value)}:")
            lines.append(f'            raise _malformed("{layout.name}.{field.name} {complaint}")')
    return lines


def py_class_head(spec: Spec, layout: Layout) -> list[str]:
    """The head of a dataclass: docstring and structs."""
    doc = [f'    """{layout.doc}"""']
    if len(doc[0]) > 100:
        doc = py_long_doc(layout.doc)
    out = ["@dataclass(frozen=True, slots=True)", f"class {layout.name}:", *doc, ""]
    if layout.type:
        out.append(f"    TYPE: ClassVar[int] = {layout.type}")
    out.append(f'    _FIXED: ClassVar[struct.Struct] = struct.Struct("{py_format(layout)}")')
    if layout.array:
        item = spec.records.get(layout.array["of"])
        if item is None:
            code = "<I" if layout.array["of"] == "u32" else "<32s"
            out.append(f'    _ITEM: ClassVar[struct.Struct] = struct.Struct("{code}")')
        else:
            out.append(f"    _ITEM: ClassVar[struct.Struct] = {item.name}._FIXED")
    return out


def py_long_doc(doc: str) -> list[str]:
    """A docstring of several lines."""
    first, _, rest = doc.partition(". ")
    out = [f'    """{first}.', ""]
    out += wrap(rest, "    ", "    ")
    return [*out, '    """']


def py_class(spec: Spec, layout: Layout) -> list[str]:
    """A dataclass with its codec."""
    out = py_class_head(spec, layout)
    out += [
        f"    {f.name}: {py_type(f)}" + (" = MINOR" if f.name == "minor" else "")
        for f in sorted(py_visible(layout), key=lambda f: f.name == "minor")
    ]
    if py_visible(layout) or layout.array:
        out.insert(
            out.index(next(line for line in out if "_FIXED" in line)) + 1 + bool(layout.array), ""
        )
    if layout.array:
        out.append(f"    {layout.array['name']}: tuple[{py_item_type(layout.array['of'])}, ...]")
    arguments = ", ".join(py_pack_argument(layout, f) for f in layout.fields)
    out += ["", "    def _payload(self) -> bytes:"]
    out += py_self_checks(spec, layout)
    pack = f"        fixed = self._FIXED.pack({arguments})"
    if len(pack) > 100:
        pack = (
            "        fixed = self._FIXED.pack(\n"
            + "".join(f"            {py_pack_argument(layout, f)},\n" for f in layout.fields)
            + "        )"
        )
    if layout.array:
        name, of = layout.array["name"], layout.array["of"]
        out.append(pack)
        if of == "u32":
            out.append(
                f'        return fixed + struct.pack(f"<{{len(self.{name})}}I", *self.{name})'
            )
        elif of == "digest":
            out.append(
                f'        return fixed + b"".join(_raw_digest(item, "{layout.name}.{name}") '
                f"for item in self.{name})"
            )
        else:
            out.append(f'        return fixed + b"".join(item._payload() for item in self.{name})')
    else:
        out.append(pack.replace("fixed = ", "return ", 1))
    out += py_parse(spec, layout)
    return out


def py_parse(spec: Spec, layout: Layout) -> list[str]:
    """The classmethod that decodes a payload."""
    where = layout.name
    out = [
        "",
        "    @classmethod",
        "    def _parse(cls, payload: bytes) -> Self:",
    ]
    for field in layout.fields:
        if field.constant is not None and field.code != "MALFORMED":
            end = field.offset + field.size
            code = STRUCT_CODES[field.type]
            out += [
                f"        if len(payload) >= {end} and "
                f'struct.unpack_from("<{code}", payload, {field.offset})[0] != {field.constant}:',
                "            raise ProtocolError(",
                f'                ErrorCode.{field.code}, "{where}.{field.name} '
                f'is not {field.constant}"',
                "            )",
            ]
    if layout.array:
        out.append("        if len(payload) < cls._FIXED.size:")
    else:
        out.append("        if len(payload) != cls._FIXED.size:")
    out.append(f'            raise _malformed("{where} has a wrong length")')
    names = [
        "_" if f.constant is not None and f.code != "MALFORMED" else f.name for f in layout.fields
    ]
    target = ", ".join(names) if len(names) > 1 else f"({names[0]},)"
    unpack = "_FIXED.unpack_from(payload)" if layout.array else "_FIXED.unpack(payload)"
    line = f"        {target} = cls.{unpack}"
    if len(line) > 100:
        line = "        (\n" + "".join(f"            {n},\n" for n in names)
        line += f"        ) = cls.{unpack}"
    out.append(line)
    values = [f"{f.name}={py_value(layout, f)}" for f in py_visible(layout)]
    if layout.array:
        count = layout.array["count"]
        out += [
            f"        if {count} * cls._ITEM.size != len(payload) - cls._FIXED.size:",
            f'            raise _malformed("{where} has a wrong length")',
        ]
    out += py_checks(spec, layout)
    if layout.array:
        name, of = layout.array["name"], layout.array["of"]
        if of == "u32":
            value = f'struct.unpack_from(f"<{{{count}}}I", payload, cls._FIXED.size)'
        elif of == "digest":
            value = "tuple(item for (item,) in cls._ITEM.iter_unpack(payload[cls._FIXED.size :]))"
        elif not py_checks(spec, spec.records[of]) and all(
            field.is_integer and py_value(spec.records[of], field) == field.name
            for field in spec.records[of].fields
        ):
            # Whole numbers only: a message has thousands of them, and one turn parses it.
            value = f"tuple(starmap({of}, cls._ITEM.iter_unpack(payload[cls._FIXED.size :])))"
        else:
            size = spec.records[of].size
            value = (
                f"tuple(\n                {of}._parse(payload[at : at + {size}])\n"
                f"                for at in range(cls._FIXED.size, len(payload), {size})\n"
                "            )"
            )
        values.append(f"{name}={value}")
    line = f"        return cls({', '.join(values)})"
    if len(line) > 100:
        line = (
            "        return cls(\n" + "".join(f"            {v},\n" for v in values) + "        )"
        )
    out.append(line)
    return out


def py_source(spec: Spec) -> str:
    """tierline_agent/transport/protocol.py."""
    raw = spec.raw
    out = [
        template(
            "head.py.in",
            banner=BANNER,
            major=str(raw["major"]),
            minor=str(raw["minor"]),
            max_payload=str(raw["max_payload"]),
            max_descriptors=str(raw["max_descriptors"]),
            no_arena=f"{raw['no_arena']:#x}",
            resident_bit=f"{raw['resident_bit']:#x}",
            yield_bit=f"{raw['yield_bit']:#x}",
        )
    ]
    for name, entry in spec.enums.items():
        out += ["", f"class {name}(enum.IntEnum):", f'    """{entry["doc"]}"""', ""]
        out += [f"    {key} = {value}" for key, value in entry["values"].items()]
        out.append("")
    for name, entry in spec.flags.items():
        out += ["", f"class {name}(enum.IntFlag):", f'    """{entry["doc"]}"""', ""]
        out += [f"    {key} = {value}" for key, value in entry["values"].items()]
        out.append("")
    for layout in (*spec.records.values(), *spec.messages):
        out += ["", *py_class(spec, layout), ""]
    names = [m.name for m in spec.messages]
    union = "\n    | ".join(names)
    out += ["", f"Message = (\n    {union}\n)"]
    out.append('"""Any message."""\n')
    sent = {
        side: "\n        "
        + "\n        ".join(f"{m.name}," for m in spec.messages if m.sender in (side, "both"))
        + "\n    "
        for side in ("client", "agent")
    }
    out.append(
        template(
            "tail.py.in",
            by_type="\n".join(f"    {m.type}: {m.name}._parse," for m in spec.messages),
            replies="\n".join(f"    {m.name}: {m.reply}," for m in spec.messages if m.reply),
            from_client=sent["client"],
            from_agent=sent["agent"],
        )
    )
    return "\n".join(out)
