"""The words by which an answer to a Knights & Knaves puzzle is read: what links, joins, denies, doubts or reports."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARROW = "\u2192"  # all arrows are read as this one

# What may stand between a name and its role; with any other word there, nothing is asserted of that name.
VERBS = _words("is are be was 's")
LINKS = VERBS | _words(
    "a an the must has have will to also both all in as one of only definitely certainly clearly surely truly indeed "
    "actually really fact therefore thus necessarily identified role identity type status kind : - = | ( ) [ ]"
)
LINKS |= {ARROW}
BINDERS = VERBS | _words(": - = | ( [") | {ARROW}
ARTICLES = _words("a an the")
ASIDES = _words("therefore thus indeed clearly certainly definitely surely actually really in fact")
SEPARATORS = _words(", and & / +")
LIST_WORDS = SEPARATORS | ARTICLES
BEFORE_NAMES = BINDERS | _words("both only")  # between a role and the names that have it
JOINTS = _words(", and & while whereas but")
NEGATIONS = _words("not no never")
AFTER_NEGATION = ARTICLES | _words("be one of")  # "not necessarily", "not both" deny less than the role

# What takes the force of an assertion from the words after it, or, for conditions, also right before it.
CONDITIONS = _words(
    "if iff or xor unless whether either neither nor would were otherwise when whenever except maybe perhaps possibly "
    "probably presumably apparently supposedly allegedly"
)
IMPLICATIONS = _words("implies entails means requires")  # conditions where they stand right behind a role
LIMITS = _words("only exactly just precisely (")  # between an assertion and its condition
SUPPOSITIONS = _words("suppose supposing assume assuming assumption case hypothesis hypothetically")
FALSE = _words("false untrue incorrect wrong impossible")
DENIALS = NEGATIONS | FALSE | _words("doubt deny none nobody")
BEHIND_ROLE = BINDERS | ASIDES | _words(", ) ] which that this it")  # between an assertion and its denial
TRUE = _words("true so correct right possible")
REPORTS = _words(
    "say says said saying claims claimed states stated told declares declared asserts asserted accuses accused "
    "according insists insisted remarked commented mentioned noted believes believed thinks expressed expresses "
    "replied replies"
)
# These report what follows if that is a whole statement: "the claim that Ada is a knight".
CLAIMS = _words("statement claim assertion accusation declaration remark sentence words assert state lie lied")
SPEAKING = REPORTS | CLAIMS
OWNERS = _words("'s his her their its")
CONCLUSIONS = _words("so therefore thus hence consequently")

# Subjects that stand for names mentioned before, or for all.
PRONOUNS = _words("he she it they")
EVERYBODY = _words("all everyone everybody each every")
NOBODY = _words("none nobody neither")
GROUP = _words("of them us these those the two three four five six seven people persons person inhabitants islanders")
CORRECTIONS = _words("no wait sorry mean meant then rather oops make that correction well")
AFTER_CORRECTION = _words("and but while because since so instead after")

# Words that are no part of the name of a stranger, even with a capital letter.
NO_NAMES = (
    LINKS | JOINTS | CONDITIONS | SUPPOSITIONS | DENIALS | REPORTS | CONCLUSIONS | CLAIMS | CORRECTIONS
) | _words(
    "he she it they you we i who which that this these those each other others everyone everybody someone anyone there "
    "what then since because for where with from given now first second third next last here name person people "
    "inhabitant inhabitants islander islanders character speaker answer answers solution result roles status means "
    "implies conclusion know find get yes ok okay his her its their both"
)


def may_begin_name(text: str) -> bool:
    """Whether a word is none of those that are no names, with a capital letter or not."""
    return text.lower() not in NO_NAMES and not text.lower().endswith(("ly", "ing"))


def looks_like_name(text: str, listed: bool = False) -> bool:
    """Whether a word is written as a name; in a list of names, one in capital letters is, too."""
    return may_begin_name(text) and text[:1].isupper() and (listed or len(text) == 1 or text[1:].islower())


def is_denial(values: list[str]) -> bool:
    """Whether the words of a sentence do nothing but deny the one before it: "No", "That is false"."""
    rest = [value for value in values if value not in BEHIND_ROLE and value not in FALSE]
    if not FALSE.isdisjoint(values):
        return not rest
    return rest in (["no"], ["not"]) or (len(rest) == 2 and rest[0] == "not" and rest[1] in TRUE)
