"""tests/native/describe.c: messages as text, the form in which golden vectors are compared."""

from __future__ import annotations

from protocol_generator.spec import BANNER, DIGEST_BYTES, Layout, Spec, snake


def c_describe(spec: Spec) -> str:
    """tests/native/describe.c: the textual form of golden vectors."""
    out = [
        "/* clang-format off */",
        f"/* {BANNER}",
        " *",
        " * Prints a decoded message as one line, `Name(field=value, ...)`, the form that",
        " * golden/messages.txt holds and that the Python codec's tests print too. */",
        '#include "describe.h"',
        "",
        "static void print_bytes(FILE *to, const uint8_t *bytes, size_t size) {",
        "    for (size_t i = 0; i < size; i++) {",
        '        fprintf(to, "%02x", bytes[i]);',
        "    }",
        "}",
        "",
        "static void print_text(FILE *to, const char *text, size_t size) {",
        "    size_t used = 0;",
        "    while (used < size && text[used] != 0) {",
        "        used++;",
        "    }",
        "    print_bytes(to, (const uint8_t *)text, used);",
        "}",
        "",
    ]

    def print_fields(layout: Layout, source: str) -> list[str]:
        lines = []
        separator = ""
        for field in layout.shown:
            if layout.array and field.name == layout.array["count"]:
                continue
            if field.is_integer:
                lines.append(
                    f'    fprintf(to, "{separator}{field.name}=%llu", '
                    f"(unsigned long long){source}{field.name});"
                )
            else:
                call = "print_text" if field.is_text else "print_bytes"
                lines.append(f'    fputs("{separator}{field.name}=", to);')
                lines.append(f"    {call}(to, {source}{field.name}, {field.size});")
            separator = ", "
        return lines

    for record in spec.records.values():
        name = snake(record.name)
        out += [
            f"static void print_{name}(FILE *to, const uint8_t *items, size_t index) {{",
            f"    struct tlp_{name} item;",
            f"    tlp_get_{name}(items, index, &item);",
            f'    fputs("{record.name}(", to);',
            *print_fields(record, "item."),
            '    fputs(")", to);',
            "}",
            "",
        ]
    for layout in spec.messages:
        name = snake(layout.name)
        out += [f"static void print_{name}(FILE *to, const struct tlp_{name} *in) {{"]
        if not layout.shown:
            out.append("    (void)in;")
        out.append(f'    fputs("{layout.name}(", to);')
        out += print_fields(layout, "in->")
        if layout.array:
            array = layout.array
            lead = ", " if len(layout.shown) > 1 else ""
            out += [
                f'    fputs("{lead}{array["name"]}=[", to);',
                f"    for (size_t i = 0; i < in->{array['count']}; i++) {{",
                '        fputs(i == 0 ? "" : " ", to);',
            ]
            if array["of"] == "u32":
                out.append(f'        fprintf(to, "%u", tlp_get_u32(in->{array["name"]}, i));')
            elif array["of"] == "digest":
                out.append(
                    f"        print_bytes(to, in->{array['name']} + i * {DIGEST_BYTES}, "
                    f"{DIGEST_BYTES});"
                )
            else:
                out.append(f"        print_{snake(array['of'])}(to, in->{array['name']}, i);")
            out += ["    }", '    fputs("]", to);']
        out += ['    fputs(")", to);', "}", ""]
    out += [
        "void describe_message(FILE *to, const struct tlp_message *message) {",
        "    switch (message->type) {",
    ]
    for layout in spec.messages:
        name = snake(layout.name)
        out += [
            f"    case TLP_{name.upper()}:",
            f"        print_{name}(to, &message->{name});",
            "        break;",
        ]
    out += ["    default:", '        fputs("unknown", to);', "    }", "}", ""]
    return "\n".join(out)
