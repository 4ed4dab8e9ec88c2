"""The layers, as the package's docstring draws them, and who may speak SQL: read from the source, not by convention."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import langgraph_sqlite_ckpt as package

FOLDER = Path(package.__file__).parent
MODULES = sorted(["tables", *(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "__main__"))])
TABLES = re.findall(r"^    (\w+) +\S", (package.tables.__doc__ or "").partition("down here, too:")[2], re.MULTILINE)
LISTED = re.findall(r"^    (\w+) +\S", (package.__doc__ or "").partition("this list only:")[2], re.MULTILINE)

TRANSACTION = re.compile(r"\s*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE)\b")
STATEMENT = re.compile(r"\b(SELECT\b.+|INSERT\b.+\bINTO|REPLACE INTO|UPDATE \w+ SET|DELETE FROM)\b", re.DOTALL)
OUR_TABLES = re.compile(r"\b(FROM|JOIN|INTO|UPDATE)\s+(namespace|checkpoint|blob|write|effect|checkpoints|runs|threads)\b")


def source(module: str) -> ast.Module:
    files = [FOLDER / f"{module}.py"] if module != "tables" else [FOLDER / "tables" / f"{part}.py" for part in TABLES]
    return ast.Module([statement for file in files for statement in ast.parse(file.read_text()).body], [])


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs: without docstrings, and without what is imported for types only."""
    for field, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (field == "body" and is_text_alone(child)) and not for_types_only(child):
                yield child
                yield from nodes(child)


def is_text_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def texts(module: str) -> Iterator[str]:
    for node in nodes(source(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def calls(tree: ast.AST, *methods: str) -> Iterator[ast.Call]:
    for node in nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            yield node


# --- imports ---


def imported(module: str) -> Iterator[str]:
    for node in nodes(source(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from own(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are spelled out here, so that they can be read"
            yield from [alias.name for alias in node.names] if node.module == package.__name__ else own(node.module or "")


def own(name: str) -> list[str]:
    root, _, module = name.partition(".")
    return [module.partition(".")[0]] if root == package.__name__ else []


def test_the_docstring_lists_every_module_once() -> None:
    assert sorted(LISTED) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_the_list_only(module: str) -> None:
    below = LISTED[LISTED.index(module) + 1 :]

    assert [name for name in imported(module) if name not in below and name != module] == []


@pytest.mark.parametrize("part", TABLES)
def test_imports_point_down_within_the_tables_too(part: str) -> None:
    assert sorted(TABLES) == sorted(path.stem for path in FOLDER.glob("tables/*.py") if path.stem != "__init__")
    text = (FOLDER / "tables" / f"{part}.py").read_text()

    assert set(re.findall(r"^from langgraph_sqlite_ckpt\.tables\.(\w+) import", text, re.MULTILINE)) <= {
        *TABLES[TABLES.index(part) + 1 :]
    }


def test_tables_know_sqlite_alone_and_how_rows_are_sealed() -> None:
    assert [name for module in ("schema", "errors") for name in imported(module)] == []
    assert {*imported("tables"), *imported("sealing"), *imported("keys")} == {"tables", "sealing", "keys", "errors"}
    assert "langgraph" not in {
        node.module.partition(".")[0]
        for node in nodes(source("tables"))
        if isinstance(node, ast.ImportFrom) and node.module
    }


# --- connections and transactions ---


def test_only_the_database_opens_connections_and_who_copies_a_whole_file() -> None:
    opening = {
        module
        for module in MODULES
        for call in calls(source(module), "connect")
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "sqlite3"
    }
    from_sqlite = {
        module
        for module in MODULES
        for node in nodes(source(module))
        if isinstance(node, ast.ImportFrom) and node.module == "sqlite3"
    }

    assert opening == {"database", "wholefile"}
    assert from_sqlite == set()  # no `from sqlite3 import connect` either


def test_only_the_database_begins_and_ends_transactions() -> None:
    """But for the locks of somebody who copies a whole file."""
    assert {module for module in MODULES if any(map(TRANSACTION.match, texts(module)))} == {"database", "wholefile"}
    assert {module for module in MODULES if [*calls(source(module), "commit", "rollback")]} == set()


def test_only_four_modules_execute_anything() -> None:
    """`database` and `wholefile` transactions and pragmas, `file` and `foreign` a look at somebody's file, `tables` the rest."""
    assert {module for module in MODULES if [*calls(source(module), "execute", "executemany", "executescript")]} == {
        "database",
        "file",
        "foreign",
        "tables",
        "wholefile",
    }


@pytest.mark.parametrize("module", ["database", "wholefile"])
def test_the_database_executes_transactions_pragmas_and_the_schema_only(module: str) -> None:
    for call in calls(source(module), "execute", "executemany", "executescript"):
        texts = [node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]
        said = [text for text in texts if isinstance(text, str) and (TRANSACTION.match(text) or text.startswith("PRAGMA "))]

        assert said or ast.unparse(call.args[0]) == "statement", ast.unparse(call)


# --- statements ---


def test_statements_on_tables_stand_in_tables_only() -> None:
    """But for the schema and its views, `listing`'s conditions, and what is read of somebody else's file."""
    assert {module for module in MODULES if any(map(STATEMENT.search, texts(module)))} == {
        "tables",
        "schema",
        "listing",
        "file",
        "foreign",
    }


def test_listing_makes_conditions_no_statements() -> None:
    assert [text for text in texts("listing") if STATEMENT.match(text.strip())] == []


def test_what_is_read_of_a_file_that_may_be_foreign_is_not_in_our_tables() -> None:
    assert [text for text in texts("file") if OUR_TABLES.search(text)] == []
    assert [text for text in texts("tables") if OUR_TABLES.search(text)] != []


# --- no text of a caller's ever enters SQL ---

COMPOSED_BY_LISTING = {"where"}  # the parameter of two functions; what enters it is looked at below


def literals(tree: ast.Module) -> set[str]:
    """Names that stand for text of the module itself: constants, and loops over constants."""
    known: set[str] = set()
    before = -1
    while len(known) > before:
        before = len(known)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and is_literal(node.value, known):
                known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.iter, (ast.Tuple, ast.List)):
                if isinstance(node.target, ast.Name) and all(is_literal(item, known) for item in node.iter.elts):
                    known.add(node.target.id)
    return known - taken_from_elsewhere(tree, known)


def taken_from_elsewhere(tree: ast.Module, known: set[str]) -> set[str]:
    """The same names, given another meaning somewhere: as an argument, or by something that is no literal."""
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
        and node.value
        and not is_literal(node.value, known)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    looped = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.comprehension))
        and isinstance(node.target, ast.Name)
        and not (isinstance(node.iter, (ast.Tuple, ast.List)) and all(is_literal(item, known) for item in node.iter.elts))
    }
    return arguments | assigned | looped


def is_literal(node: ast.expr | None, known: set[str]) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and is_literal(node.left, known) and is_literal(node.right, known)
    if isinstance(node, ast.IfExp):
        return is_literal(node.body, known) and is_literal(node.orelse, known)
    if isinstance(node, ast.JoinedStr):
        return all(is_literal(part, known) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return is_literal(node.value, known) or is_number(node.value)
    return False


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int"


def not_literal(tree: ast.Module, *methods: str) -> list[str]:
    known = literals(tree)
    allowed = known | (COMPOSED_BY_LISTING if "execute" in methods else set())
    return [ast.unparse(call) for call in calls(tree, *methods) if not is_literal(call.args[0], allowed)]


def test_statements_are_literals_of_their_module() -> None:
    for module in ("tables", "file", "foreign"):
        assert not_literal(source(module), "execute", "executemany", "executescript") == []


def test_conditions_are_literals_of_listing() -> None:
    assert not_literal(source("listing"), "also") == []
    made = [call for call in nodes(source("listing")) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Where"]
    assert {ast.unparse(call) for call in made if call.args} == {
        "Where((*self.conditions, condition), (*self.parameters, *parameters))"  # in `also` itself
    }


def test_a_where_is_only_composed_by_listing() -> None:
    for module in MODULES:
        for call in calls(source(module), "select_checkpoints", "select_metadata"):
            assert module == "listing"
            assert ast.unparse(call.args[1]).endswith(".sql")


@pytest.mark.parametrize(
    "bad",
    [
        "def find(db, name):\n    db.execute('SELECT ' + name)",
        "def find(db, name):\n    db.execute(f'SELECT {name}')",
        "def find(db, name):\n    sql = 'SELECT ' + name\n    db.execute(sql)",
        "def find(db, name):\n    db.execute('SELECT %s' % name)",
        "def find(db, name):\n    db.execute('SELECT {}'.format(name))",
        "def find(db, names):\n    for name in names:\n        db.execute('SELECT ' + name)",
        "NAME = 'x'\ndef find(db, NAME):\n    db.execute('SELECT ' + NAME)",
    ],
)
def test_the_look_for_literals_sees_what_is_none(bad: str) -> None:
    assert len(not_literal(ast.parse(bad), "execute")) == 1


# --- documentation ---


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(source(module))


def documented() -> set[str]:
    """The classes and functions with a docstring of their own, and the names that a text follows."""
    found = set()
    for module in [*MODULES, "__init__"]:
        body = source(module).body
        found |= {
            node.name
            for node in body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node)
        }
        for node, after in zip(body, body[1:], strict=False):
            if isinstance(node, ast.Assign) and is_text_alone(after):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_public_name_has_a_docstring() -> None:
    assert set(package.__all__) - documented() == set()
    assert all(hasattr(package, name) for name in package.__all__)


def methods() -> dict[str, str | None]:
    """The public methods of the saver, ours alone, with their docstrings."""
    found: dict[str, str | None] = {}
    for owner in package.SqliteSaver.__mro__:
        if owner.__module__.startswith(package.__name__):
            for name, member in vars(owner).items():
                if not name.startswith("_") and (
                    callable(member) or isinstance(member, (property, classmethod, staticmethod))
                ):
                    found.setdefault(name, member.__doc__)
    return found


def test_every_public_method_has_a_docstring_which_its_async_twin_does_not_repeat() -> None:
    found = methods()
    twins = {name for name in found if name[0] == "a" and name[1:] in found}

    assert {"aput", "alist", "aprune"} <= twins
    assert {name for name, text in found.items() if not text and name not in twins} == set()
    assert {name for name in twins if found[name] == found[name[1:]]} == set()


def test_every_operation_of_the_contract_has_both_faces() -> None:
    found = methods()
    contract = {"get_tuple", "list", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread", "prune"}

    assert {name for name in contract | {"get_delta_channel_history"} if not {name, "a" + name} <= found.keys()} == set()
