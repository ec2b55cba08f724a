"""Holds the documents against the repository: `python -m tests.documents`; exit 1 on a fault."""

import sys
from pathlib import Path

from tests.documents import commands, drawings, environment, links, words
from tests.documents.pages import Repository

repository = Repository.read(Path(__file__).parents[2])
wrong = [
    *links.dead(repository),
    *commands.unknown(repository),
    *environment.differences(repository),
    *drawings.broken(repository),
    *words.old(repository),
]
for sentence in wrong:
    print(sentence, file=sys.stderr)
print(f"{len(repository.pages)} pages: {len(wrong)} sentences to mend")
sys.exit(bool(wrong))
