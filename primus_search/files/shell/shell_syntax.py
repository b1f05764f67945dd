"""Words, commands and blocks of a shell script, by bash's own grammar; nothing is filled in and nothing is run.

    parsed("if [[ $TP -gt 1 ]]; then run --tp $TP; fi")

A word is raw text: quotes, `$...` and brackets stand in it as they are written (`shell_variables` fills them in).
"""

import re
from dataclasses import dataclass

_PREFIX = re.compile(r"(?<!\w)[A-Za-z_]\w*+(?:\[[^\]]{0,200}\])?\+?=$")
_REDIRECTION = re.compile(r"(?:\d{1,4}|&)?(?:<<<|<<-?|<&|<>|>>|>&|>\||<(?!\()|>(?!\())")
_PLACEHOLDER = re.compile(
    r"<(?:[A-Z_]{3,40}|(?i:path|your)[-_][\w./-]{1,80}|[A-Za-z][\w./-]{0,40}(?: [\w./-]{1,40}){1,12})>"
)
"""What a reader is to fill in (`<PATH TO THE DATA>`), which bash takes for two redirections."""
DEEPEST = 40
"""Brackets, commands and references inside each other; deeper ones are refused."""
LONGEST = 500
"""Characters of an arithmetic text; a longer one has no value."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, an operator, a redirection (with its here-document), `((...))` or `[[...]]`; `at`: where it begins."""

    kind: str
    text: str
    at: int
    document: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A command: its kind, its raw words, the blocks inside it, its redirections (of simple commands alone).

    kind               words                                     blocks
    simple             all of them
    test, maths        the text inside `[[ ]]` or `(( ))`
    chain              the sign before each block, first empty   the pipelines
    pipe               `!` where it is negated                   its commands, as one
    group, subshell                                              what is inside
    function           its name                                  its body
    if                                                           test, then, test, then ..., else
    while              `while` or `until`                        test, body
    for                `NAME in ITEM...`, or `a; b; c`           body
    case               subject, patterns of each block in lines  what follows each
    """

    kind: str
    at: int
    words: tuple[str, ...] = ()
    blocks: "tuple[Block, ...]" = ()
    redirections: tuple[Token, ...] = ()


Block = tuple[Node, ...]


def parsed(text: str) -> Block:
    """The commands of a script."""
    return _Parser(text).block()


def behind(text: str, i: int, depth: int = 0) -> int:
    """Behind the quoted, escaped or bracketed piece that begins at `i`, else behind its character."""
    if depth > DEEPEST:
        raise ValueError("brackets and quotes of the script are nested too deeply")
    char = text[i]
    if char == "\\":
        return i + 2
    if char == "'" or text.startswith("$'", i):
        begin = i + 1 + (char == "$")
        end = text.find("'", begin)
        return len(text) if end < 0 else end + 1
    if char in '"`':
        at = i + 1
        while at < len(text) and text[at] != char:
            at = behind(text, at, depth + 1) if text[at] in ("\\$`" if char == '"' else "\\") else at + 1
        return at + 1
    if char in "$<>" and text[i + 1 : i + 2] in ("(", "{"):
        return closing(text, i + 1, depth)
    return i + 1


def closing(text: str, i: int, depth: int = 0) -> int:
    """Behind the bracket that closes the one at `i`."""
    opens, closes = text[i], {"(": ")", "{": "}"}[text[i]]
    at, open_ones = i + 1, 1
    while at < len(text) and open_ones:
        if text[at] in "\\'\"`$":
            at = behind(text, at, depth + 1)
            continue
        if text[at] == "#" and opens == "(" and text[at - 1].isspace():
            at = _line_end(text, at)
            continue
        open_ones += (text[at] == opens) - (text[at] == closes)
        at += 1
    return at


def _line_end(text: str, i: int) -> int:
    end = text.find("\n", i)
    return len(text) if end < 0 else end


def tokens(text: str) -> list[Token]:
    """Tokens of a script."""
    found: list[Token] = []
    waiting: list[tuple[int, str, bool]] = []  # here-documents: which token, their end, whether tabs go
    i = 0
    while i < len(text):
        char = text[i]
        if text.startswith("\\\n", i) or char in " \t\r":
            i += 1 + (char == "\\")
        elif char == "#":
            i = _line_end(text, i)
        elif char == "\n":
            found.append(Token("operator", "\n", i))
            i += 1
            for n, last, cuts in waiting:
                body, i = _document(text, i, last, cuts)
                found[n] = Token("redirection", found[n].text, found[n].at, body)
            waiting = []
        elif blank := _PLACEHOLDER.match(text, i):
            end = _word_end(text, blank.end())
            found.append(Token("word", f"'{blank[0]}'{text[blank.end() : end]}", i))
            i = end
        elif sign := _REDIRECTION.match(text, i):
            begin = sign.end()
            while begin < len(text) and text[begin] in " \t":
                begin += 1
            end = _word_end(text, begin)
            target = text[begin:end]
            operation = sign[0].lstrip("0123456789&")
            if operation in ("<<", "<<-"):
                waiting.append((len(found), target, operation == "<<-"))
            found.append(Token("redirection", f"{operation} {target}", i))
            i = max(end, sign.end())
        elif text.startswith("((", i) and (inside := text[i : i + closing(text[i : i + LONGEST], 0)]).endswith("))"):
            end = i + len(inside)
            found.append(Token("maths", text[i + 2 : end - 2], i))
            i = end
        elif char in ";&|()":
            sign_of = next(one for one in (";;&", ";;", ";&", "&&", "||", "|&", char) if text.startswith(one, i))
            found.append(Token("operator", sign_of, i))
            i += len(sign_of)
        else:
            end = max(_word_end(text, i), i + 1)
            if text[i:end] == "[[":
                close = re.compile(r"\s\]\](?=[\s;&|)]|$)").search(text, end)
                stop = close.start() if close else len(text)
                found.append(Token("test", text[end:stop], i))
                end = close.end() if close else len(text)
            else:
                found.append(Token("word", text[i:end], i))
            i = end
    return found


def _document(text: str, i: int, end: str, cuts: bool) -> tuple[str, int]:
    """A here-document from `i` and where the text goes on; a quoted end keeps its text as it is written."""
    plain = end.strip("'\"\\")
    lines = []
    while i < len(text):
        stop = _line_end(text, i)
        line, i = text[i:stop].rstrip("\r"), stop + 1
        line = line.lstrip("\t") if cuts else line
        if line.strip() == plain:
            break
        lines.append(line)
    body = "\n".join(lines) + "\n"
    return body if plain == end else body.replace("\\", "\\\\").replace("$", "\\$").replace("`", "\\`"), i


def _word_end(text: str, i: int) -> int:
    """Where the word that begins at `i` ends."""
    begin = i
    while i < len(text) and text[i] not in " \t\r\n;&|()<>":
        i = behind(text, i)
        if text[i : i + 1] == "(" and _PREFIX.match(text[begin:i]):  # an array
            return closing(text, i)
    return min(i, len(text))


class _Parser:
    """Commands of a list of tokens."""

    def __init__(self, text: str) -> None:
        self._tokens, self._i, self._depth = tokens(text), 0, 0

    def _is(self, *texts: str, kind: str = "word") -> bool:
        token = self._tokens[self._i] if self._i < len(self._tokens) else None
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def _takes(self, *texts: str, kind: str = "word") -> str:
        """The text of the next token where it is one of these, which is passed; else empty."""
        if not self._is(*texts, kind=kind):
            return ""
        self._i += 1
        return self._tokens[self._i - 1].text

    def _skip(self, *texts: str) -> None:
        while self._takes(*texts, kind="operator"):
            pass

    def _is_at(self, ends: tuple[str, ...]) -> bool:
        """Whether the next token is one of the words or operators that end a block."""
        return bool(ends) and (self._is(*ends) or self._is(*ends, kind="operator"))

    def block(self, *ends: str) -> Block:
        """Commands up to one of the words or operators that end a block, which is not passed."""
        found: list[Node] = []
        while self._i < len(self._tokens):
            self._skip("\n", ";", "&")
            if self._is_at(ends):
                break
            before = self._i
            found += [self._chain()] if self._i < len(self._tokens) else []
            self._i += self._i == before
        return tuple(found)

    def _to(self, *ends: str) -> Block:
        """A block, its end passed."""
        found = self.block(*ends)
        self._i += 1
        return found

    def _chain(self) -> Node:
        """Commands between `&&` and `||`."""
        first = self._pipe()
        blocks, signs = [(first,)], [""]
        while sign := self._takes("&&", "||", kind="operator"):
            signs.append(sign)
            self._skip("\n")
            blocks.append((self._pipe(),))
        return first if len(blocks) == 1 else Node("chain", first.at, tuple(signs), tuple(blocks))

    def _pipe(self) -> Node:
        is_negated = bool(self._takes("!"))
        commands = [self._command()]
        while self._takes("|", "|&", kind="operator"):
            self._skip("\n")
            commands.append(self._command())
        if len(commands) == 1 and not is_negated:
            return commands[0]
        return Node("pipe", commands[0].at, ("!",) if is_negated else (), (tuple(commands),))

    def _command(self) -> Node:
        if self._i >= len(self._tokens):
            return Node("simple", 0)
        self._depth += 1
        if self._depth > 2 * DEEPEST:
            raise ValueError("commands of the script are nested too deeply")
        token = self._tokens[self._i]
        self._i += 1
        node = self._compound(token)
        while node is not None and self._takes(kind="redirection"):
            pass
        self._depth -= 1
        return node or self._simple(token.at)

    def _simple(self, at: int) -> Node:
        self._i -= 1
        tokens = []
        while self._is(kind="word") or self._is(kind="redirection"):
            tokens.append(self._tokens[self._i])
            self._i += 1
        words = tuple(token.text for token in tokens if token.kind == "word")
        return Node("simple", at, words, (), tuple(token for token in tokens if token.kind == "redirection"))

    def _compound(self, token: Token) -> Node | None:
        """The command that a token begins where it is no simple one."""
        kind, at = token.kind, token.at
        if kind in ("maths", "test"):
            return Node(kind, at, (token.text,))
        if kind == "operator":
            return Node("subshell", at, (), (self._to(")"),)) if token.text == "(" else None
        if token.text == "{":
            return Node("group", at, (), (self._to("}"),))
        if token.text == "if":
            return self._if(at)
        if token.text in ("while", "until"):
            return Node("while", at, (token.text,), (self._to("do"), self._to("done")))
        if token.text in ("for", "select"):
            return Node("for", at, self._head("do"), (self._to("done"),))
        if token.text == "case":
            return self._case(at)
        is_named = token.text == "function"
        if not is_named and not (self._is("(", kind="operator") and re.fullmatch(r"[\w.:-]+", token.text)):
            return None
        name = self._takes() if is_named else token.text
        self._skip("(", ")", "\n")
        return Node("function", at, (name,), ((self._command(),),))

    def _head(self, end: str) -> tuple[str, ...]:
        """Words up to one that ends them; of `for ((...))` the text with its semicolons."""
        words = []
        while self._i < len(self._tokens) and not self._is_at((end,)):
            words += [self._tokens[self._i].text] if self._is() or self._is(kind="maths") else []
            self._i += 1
        self._i += 1
        return tuple(words)

    def _if(self, at: int) -> Node:
        blocks = [self._to("then"), self.block("elif", "else", "fi")]
        while self._takes("elif"):
            blocks += [self._to("then"), self.block("elif", "else", "fi")]
        if self._takes("else"):
            blocks.append(self.block("fi"))
        self._i += 1
        return Node("if", at, (), tuple(blocks))

    def _case(self, at: int) -> Node:
        words, blocks = [*self._head("in")][:1], []
        while self._i < len(self._tokens):
            self._skip("\n", "(", ";")
            if self._is("esac"):
                break
            words.append("\n".join(self._head(")")))
            blocks.append(self.block(";;", ";&", ";;&", "esac"))
            self._i += not self._is("esac")
        self._i += 1
        return Node("case", at, tuple(words), tuple(blocks))


def test_pieces(text: str) -> list[str]:
    """The raw words of a `[[ ]]`."""
    found, i = list[str](), 0
    while i < len(text):
        if text[i].isspace() or text.startswith("\\\n", i):
            i += 1
            continue
        begin = i
        if text[i] in "()" or text.startswith(("&&", "||"), i):
            i += 1 if text[i] in "()" else 2
        else:
            while i < len(text) and not text[i].isspace() and not text.startswith(("&&", "||"), i):
                if text[i] == ")" and "(" not in text[begin:i]:
                    break
                i = behind(text, i)
        found.append(text[begin:i])
    return found
