"""What a program does to its model between two jobs, or asks of it."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_STEPS = {
    "loads": "model.load_state_dict({k: v * 1.1 if v.is_floating_point() else v\n"
    "                       for k, v in model.state_dict().items()})",
    "loads_by_assigning": "model.load_state_dict({k: v.clone() for k, v in\n"
    "                       model.state_dict().items()}, assign=True)",
    "scales": "with torch.no_grad():\n    for p in model.parameters(): p.mul_(1.1)",
    "scales_data": "for p in model.parameters(): p.data.mul_(1.1)",
    "new_data": "for p in model.parameters(): p.data = p.data * 1.1",
    "copies_in": "with torch.no_grad():\n    for p in model.parameters(): p.copy_(p.flip(0))",
    "doubles": "model.double().float()",
    "halves": "model.half().float()",
    "initialises": "torch.manual_seed(5)\nmodel.apply(lambda m: m.reset_parameters() if type(m) is "
    "nn.Linear else None)",
    "freezes": "model.requires_grad_(False)",
    "trains_mode": "model.train().eval()",
    "replaces_body": "model.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())",
    "wraps_body": "model.body = nn.Sequential(model.body, nn.Tanh())",
    "copies_body": "model.body = copy.deepcopy(model.body)",
    "drops_body": "model.body = nn.Identity()",
    "prunes": "import torch.nn.utils.prune as prune\nfor m in model.modules():\n"
    "    if type(m) is nn.Linear: prune.l1_unstructured(m, 'weight', amount=0.3)",
    "parametrises": "for m in list(model.modules()):\n"
    "    if type(m) is nn.Linear: nn.utils.parametrizations.weight_norm(m)",
    "as_vector": "v = nn.utils.parameters_to_vector(model.parameters())\n"
    "nn.utils.vector_to_parameters(v * 1.1, model.parameters())",
    "swaps": "a = nn.Linear(WIDTH, WIDTH)\nfor m in model.modules():\n"
    "    if type(m) is nn.Linear and m.weight.shape == a.weight.shape and type(m.weight) is "
    "nn.Parameter:\n        torch.utils.swap_tensors(m.weight, a.weight)\n        break",
    "loads_by_swapping": "torch.__future__.set_swap_module_params_on_conversion(True)\n"
    "model.load_state_dict({k: v * 1.1 if v.is_floating_point() else v\n"
    "                       for k, v in model.state_dict().items()})\n"
    "torch.__future__.set_swap_module_params_on_conversion(False)",
    "converts_by_swapping": "torch.__future__.set_swap_module_params_on_conversion(True)\n"
    "model.double().float()\n"
    "torch.__future__.set_swap_module_params_on_conversion(False)",
    # A program that is told that memory of Tierline's has a fixed size does what that says.
    "resizes": "for p in model.parameters():\n"
    "    if type(p) is nn.Parameter and not p.is_inference() and p.is_contiguous():\n"
    "        with torch.no_grad():\n"
    "            shape = p.shape\n"
    "            try: p.data.resize_(2 * p.numel()).resize_(shape)\n"
    "            except RuntimeError as error:\n"
    "                assert 'Tierline' in str(error) or 'not resizable' in str(error)\n"
    "                p.data = p.data.clone()",
    "frees_and_refills": "for p in model.parameters():\n"
    "    if type(p) is nn.Parameter and not p.is_inference() and p.is_contiguous():\n"
    "        kept, memory = p.detach().clone(), p.untyped_storage()\n"
    "        if memory.nbytes() != kept.nbytes: continue\n"
    "        try: memory.resize_(0)\n"
    "        except RuntimeError as error:\n"
    "            assert 'Tierline' in str(error)\n"
    "            p.data = p.data.clone()\n"
    "            memory = p.untyped_storage()\n"
    "            memory.resize_(0)\n"
    "        memory.resize_(kept.nbytes)\n"
    "        p.data.copy_(kept * 1.1)",
    "sets": "for p in model.parameters():\n"
    "    if type(p) is nn.Parameter: p.data.set_(p.data.clone())",
    "quantises": "torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)",
    "trains": "with torch.inference_mode(False), torch.enable_grad():\n"
    "    model.train()\n"
    "    for p in model.parameters(): p.grad = None\n"
    "    loss = model.body(given(0, 4, WIDTH)).float().square().mean()\n"
    "    loss.backward()\n"
    "    for p in model.parameters():\n"
    "        if p.grad is not None: p.data -= 0.1 * p.grad\n"
    "    model.eval()",
    "one_storage": "import gc\nw = [p.data.clone() for p in model.parameters()]\n"
    "for p in model.parameters(): p.data = torch.empty(0, dtype=p.dtype)\ngc.collect()\n"
    "for p, one in zip(model.parameters(), w): p.data = one",
    "saves": "file = io.BytesIO()\ntorch.save(model.state_dict(), file)\nfile.seek(0)\n"
    "say(sorted(torch.load(file).items()))",
    "saves_old": "file = io.BytesIO()\ntorch.save(model.state_dict(), file, "
    "_use_new_zipfile_serialization=False)\nfile.seek(0)\nsay(sorted(torch.load(file).items()))",
    "saves_safely": "from safetensors.torch import save, load\n"
    "say(sorted(load(save({k: v.contiguous().clone() for k, v in model.state_dict().items()}))"
    ".items()))",
    "pickles": "import pickle\nsay(pickle.loads(pickle.dumps(model.body.state_dict())))",
    "counts": "say(sum(p.numel() for p in model.parameters()), repr(model)[:200])",
    "norms": "say([p.detach().float().norm() for p in model.parameters()])",
    "compares": "say([torch.equal(p, p.clone()) for p in model.parameters()])",
    "prints_weights": "print(next(iter(model.parameters()), None))",
    "collects": "gc.collect()",
    "exports_numbers": "say([p.detach().tolist()[:1] for p in model.parameters()])",
    "reads_in_thread": "t = threading.Thread(target=lambda: say([p.sum() for p in "
    "model.parameters()]))\nt.start()\nt.join()",
    "saves_to_file": "torch.save(model.state_dict(), folder / 'c.pt')\n"
    "say(sorted(torch.load(folder / 'c.pt').items()))",
    "empties": "torch.save(model.body.state_dict(), folder / 'b.pt')\n"
    "for p in model.body.parameters(): p.data.zero_()\n"
    "model.body.load_state_dict(torch.load(folder / 'b.pt'))",
    "deletes_and_adds": "b = model.body\ndel model.body\ngc.collect()\nmodel.body = b",
    "forks": "child = os.fork()\nif not child:\n    code = 1\n    try:\n"
    "        code = int(all(torch.isfinite(p.float()).all() for p in model.parameters())) + 40\n"
    "    finally:\n        os._exit(code)\nsay(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "faulthandler": "import faulthandler, tempfile\nf = tempfile.TemporaryFile()\n"
    "faulthandler.enable(f)\nsay([p.sum() for p in model.parameters()])\nfaulthandler.disable()\n"
    "f.close()",
}


def exchange(text: Text) -> None:
    """One step before one job, or before every third."""
    name = text.random.choice(sorted(_STEPS))
    text.tags.append(name)
    job = text.some_job()
    when = f"i == {job}" if text.chance(0.7) else "i % 3 == 2"
    lines = "\n    ".join(_STEPS[name].splitlines())
    text.add("asked", f"if {when}:\n    {lines}")


def two_exchanges(text: Text) -> None:
    exchange(text)
    exchange(text)


EXCHANGES: tuple[Piece, ...] = (exchange, exchange, two_exchanges)
