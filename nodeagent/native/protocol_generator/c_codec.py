"""The C codec: include/tierline/protocol.h and src/wire/protocol.c."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol_generator.spec import BANNER, DIGEST_BYTES, Field, Layout, Spec, snake, template, wrap


def c_members(layout: Layout) -> list[str]:
    """The members of a C struct."""
    lines = []
    for field in layout.shown:
        if field.is_integer:
            lines.append(f"    uint{field.size * 8}_t {field.name};")
        elif field.is_text:
            lines.append(f"    char {field.name}[{field.size}];")
        else:
            lines.append(f"    uint8_t {field.name}[{field.size}];")
    if layout.array:
        of, name, count = layout.array["of"], layout.array["name"], layout.array["count"]
        lines.append(f"    const uint8_t *{name}; /* {count} x {of}, in wire form */")
    return lines


def c_header(spec: Spec) -> str:
    """include/tierline/protocol.h."""
    return template(
        "protocol.h.in",
        banner=BANNER,
        constants="\n".join(c_constants(spec)),
        enums="\n".join(c_enums(spec)),
        structs="\n".join(c_structs(spec)),
        members="\n".join(
            f"        struct tlp_{snake(m.name)} {snake(m.name)};" for m in spec.messages
        ),
        accessors="\n".join(
            f"#define TLP_{snake(r.name).upper()}_BYTES {r.size}U\n"
            + f"{_getter(r)};\n{_putter(r)};"
            for r in spec.records.values()
        ),
    )


def c_constants(spec: Spec) -> list[str]:
    """The protocol's numbers."""
    raw = spec.raw
    return [
        f"#define TLP_MAJOR {raw['major']}U",
        f"#define TLP_MINOR {raw['minor']}U",
        "#define TLP_HEADER_BYTES 12U",
        f"#define TLP_MAX_PAYLOAD {raw['max_payload']}U",
        "#define TLP_MAX_FRAME (TLP_HEADER_BYTES + TLP_MAX_PAYLOAD)",
        f"#define TLP_MAX_DESCRIPTORS {raw['max_descriptors']}U",
        f"#define TLP_NO_ARENA {raw['no_arena']:#x}U",
        f"#define TLP_RESIDENT_BIT {raw['resident_bit']:#x}U",
        f"#define TLP_YIELD_BIT {raw['yield_bit']:#x}U",
        f"#define TLP_DIGEST_BYTES {DIGEST_BYTES}U",
        "",
        *(
            f"#define TLP_MAX_{snake(layout.name).upper()}_ITEMS {spec.item_limit(layout)}U"
            for layout in spec.messages
            if layout.array
        ),
    ]


def c_enums(spec: Spec) -> list[str]:
    """Enumerations, flags, and the message types."""
    out = []
    for name, entry in (spec.enums | spec.flags).items():
        out += [f"/* {entry['doc']} */", f"enum tlp_{snake(name)} {{"]
        prefix = f"TLP_{snake(name).upper()}"
        out += [f"    {prefix}_{key} = {value}," for key, value in entry["values"].items()]
        out += ["};", ""]
    out += ["enum tlp_type {"]
    out += [f"    TLP_{snake(m.name).upper()} = {m.type}," for m in spec.messages]
    return [*out, "};", ""]


def c_structs(spec: Spec) -> list[str]:
    """One struct for each record and message."""
    out = []
    for layout in (*spec.records.values(), *spec.messages):
        out += wrap(layout.doc + " */", "/* ", " * ")
        out += [f"struct tlp_{snake(layout.name)} {{"]
        out += c_members(layout) or ["    char empty; /* carries nothing */"]
        out += ["};", ""]
    return out


def _getter(record: Layout) -> str:
    name = snake(record.name)
    return f"void tlp_get_{name}(const uint8_t *items, size_t index, struct tlp_{name} *out)"


def _putter(record: Layout) -> str:
    name = snake(record.name)
    return f"void tlp_put_{name}(uint8_t *items, size_t index, const struct tlp_{name} *in)"


def c_load(field: Field, base: str) -> str:
    """The value of an integer field."""
    return f"load{field.size * 8}({base} + {field.offset})"


def c_save_fields(layout: Layout, source: str, base: str) -> list[str]:
    """Statements that write the fixed fields."""
    lines = []
    for field in layout.fields:
        at = f"{base} + {field.offset}" if field.offset else base
        if field.constant is not None:
            lines.append(f"    save{field.size * 8}({at}, {field.constant:#x});")
        elif field.is_integer:
            lines.append(f"    save{field.size * 8}({at}, {source}->{field.name});")
        elif field.is_text:
            lines.append(f"    save_text({at}, {source}->{field.name}, {field.size});")
        else:
            lines.append(f"    memcpy({at}, {source}->{field.name}, {field.size});")
    return lines


def c_checks(spec: Spec, layout: Layout, base: str, where: str, indent: str) -> list[str]:
    """Statements that refuse what breaks a rule, reading the wire form."""
    lines = []

    def refuse_if(condition: str, code: str, complaint: str) -> None:
        lines.append(f"{indent}if ({condition}) {{")
        lines.append(
            f'{indent}    return refuse(why, TLP_ERROR_CODE_{code}, "{where}{complaint}");'
        )
        lines.append(f"{indent}}}")

    for field in layout.fields:
        at = f"{base} + {field.offset}" if field.offset else base
        if field.is_text:
            refuse_if(
                f"!text_is_valid({at}, {field.size})",
                "MALFORMED",
                f".{field.name} is not NUL-padded UTF-8",
            )
            continue
        if not field.is_integer:
            continue
        value = f"load{field.size * 8}({at})"
        if field.constant is not None and field.code == "MALFORMED":
            refuse_if(
                f"{value} != {field.constant:#x}",
                field.code,
                f".{field.name} is not {field.constant:#x}",
            )
        for condition, _, complaint in field.conditions(spec):
            refuse_if(condition.format(v=value), field.code, f".{field.name} {complaint}")
    return lines


def c_early_checks(layout: Layout) -> list[str]:
    """Checks of constants that another version of the protocol may hold: before the length."""
    lines = []
    for field in layout.fields:
        if field.constant is None or field.code == "MALFORMED":
            continue
        end = field.offset + field.size
        lines += [
            f"    if (length >= {end} && {c_load(field, 'payload')} != {field.constant:#x}) {{",
            f"        return refuse(why, TLP_ERROR_CODE_{field.code},",
            f'                      "{layout.name}.{field.name} is not {field.constant}");',
            "    }",
        ]
    return lines


def c_length_check(spec: Spec, layout: Layout) -> list[str]:
    """The payload is as long as its fields and its array's count say."""
    wrong = f"length != {layout.size}"
    if layout.array:
        count = next(f for f in layout.fields if f.name == layout.array["count"])
        counted = f"(uint64_t){c_load(count, 'payload')} * {spec.item_bytes(layout)}"
        wrong = f"length < {layout.size} ||\n        {counted} != length - {layout.size}"
    complaint = f'"{layout.name} has a wrong length"'
    return [
        f"    if ({wrong}) {{",
        f"        return refuse(why, TLP_ERROR_CODE_MALFORMED, {complaint});",
        "    }",
    ]


def c_decode_function(spec: Spec, layout: Layout) -> list[str]:
    """decode_<message>."""
    name = snake(layout.name)
    out = [
        f"static int decode_{name}(const uint8_t *payload, size_t length, struct tlp_{name} *out,",
        "                  struct tlp_refusal *why) {",
    ]
    out += c_early_checks(layout)
    out += c_length_check(spec, layout)
    out += c_checks(spec, layout, "payload", layout.name, "    ")
    if layout.array and layout.array["of"] in spec.records:
        record = spec.records[layout.array["of"]]
        checks = c_checks(spec, record, "item", record.name, "        ")
        if checks:
            out += [
                f"    for (size_t at = {layout.size}; at < length; at += {record.size}) {{",
                "        const uint8_t *item = payload + at;",
                *checks,
                "    }",
            ]
    for field in layout.shown:
        at = f"payload + {field.offset}" if field.offset else "payload"
        if field.is_integer:
            out.append(f"    out->{field.name} = load{field.size * 8}({at});")
        else:
            out.append(f"    memcpy(out->{field.name}, {at}, {field.size});")
    if layout.array:
        out.append(f"    out->{layout.array['name']} = payload + {layout.size};")
    if not layout.shown:
        out.append("    out->empty = 0;")
    out += ["    return 0;", "}", ""]
    return out


def c_accessors(record: Layout) -> list[str]:
    """tlp_get_ and tlp_put_ of an array's element."""
    out = [f"{_getter(record)} {{", f"    const uint8_t *at = items + index * {record.size};"]
    for field in record.shown:
        if field.is_integer:
            out.append(f"    out->{field.name} = {c_load(field, 'at')};")
        else:
            out.append(f"    memcpy(out->{field.name}, at + {field.offset}, {field.size});")
    out += ["}", "", f"{_putter(record)} {{"]
    out += [f"    uint8_t *at = items + index * {record.size};"]
    return [*out, *c_save_fields(record, "in", "at"), "}", ""]


def c_encode_function(spec: Spec, layout: Layout) -> list[str]:
    """encode_<message>."""
    name = snake(layout.name)
    out = [f"static void encode_{name}(const struct tlp_{name} *in, uint8_t *payload) {{"]
    if not layout.shown:
        out.append("    (void)in;")
    out += c_save_fields(layout, "in", "payload")
    if layout.array:
        array, item = layout.array, spec.item_bytes(layout)
        out += [
            f"    if (in->{array['name']} != NULL) {{",
            f"        memcpy(payload + {layout.size}, in->{array['name']},",
            f"               (size_t)in->{array['count']} * {item});",
            "    }",
        ]
    return [*out, "}", ""]


def c_cases(messages: Iterable[Layout], body: Callable[[Layout], str]) -> str:
    """The cases of a switch over message types."""
    return "\n".join(f"    case TLP_{snake(m.name).upper()}:\n{body(m)}" for m in messages)


def c_source(spec: Spec) -> str:
    """src/wire/protocol.c."""
    messages = spec.messages

    def decode(m: Layout) -> str:
        name = snake(m.name)
        return f"        return decode_{name}(payload, length, &out->{name}, why);"

    def encode(m: Layout) -> str:
        name = snake(m.name)
        return f"        encode_{name}(&message->{name}, payload);\n        break;"

    def array_size(m: Layout) -> str:
        count = m.array["count"] if m.array else ""
        value = f"(uint64_t)message->{snake(m.name)}.{count} * {spec.item_bytes(m)}"
        return f"        return {value};"

    records = spec.records.values()
    return template(
        "protocol.c.in",
        banner=BANNER,
        accessors="\n".join(line for r in records for line in c_accessors(r)),
        decoders="\n".join(line for m in messages for line in c_decode_function(spec, m)),
        decode_cases=c_cases(messages, decode),
        sizes=c_cases(messages, lambda m: f"        return {m.size};"),
        encoders="\n".join(line for m in messages for line in c_encode_function(spec, m)),
        array_sizes=c_cases((m for m in messages if m.array), array_size),
        encode_cases=c_cases(messages, encode),
    )
