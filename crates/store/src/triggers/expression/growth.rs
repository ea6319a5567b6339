//! Static upper bound on the size of the values that an expression can produce.
//!
//! Fuel limits the number of steps, not the size of their results: `'x' * 99999999` is one step, `x ~ x` doubles its
//! operand, and constants are folded at compile time without fuel. A few dozen bytes of expression could exhaust the
//! server's memory. Expressions whose bound exceeds `EXPRESSION_VALUE_BYTES` are therefore rejected before they are
//! compiled, whatever their events contain.

use domain::limits::{EXPRESSION_TOKENS, EXPRESSION_VALUE_BYTES, PAYLOAD_BYTES};
use minijinja::machinery::ast::{BinOp, BinOpKind, Call, CallArg, Expr, Filter, Stmt};
use minijinja::machinery::{parse, parse_expr, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::{ExpressionError, expression_error};

/// Maximum length of a number or a boolean as text.
const NUMBER: u64 = 64;
/// Maximum size of the result of `range`.
const RANGE: u64 = 100_000 * 8;
/// Filters that select from or reorder their input.
const PICK: &[&str] = &[
    "attr",
    "bool",
    "d",
    "default",
    "dictsort",
    "first",
    "groupby",
    "items",
    "last",
    "list",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "sum",
    "unique",
];
/// Filters that convert their input to text.
const TEXTS: &[&str] = &[
    "capitalize",
    "e",
    "escape",
    "join",
    "lines",
    "lower",
    "replace",
    "safe",
    "split",
    "string",
    "title",
    "tojson",
    "trim",
    "upper",
];
/// Maximum growth of a list or a map when it is converted to text: quotes and other characters are escaped.
const ESCAPED: u64 = 6;
/// Filters that return a number.
const NUMBERS: &[&str] = &["abs", "count", "float", "int", "length", "round"];
/// Filters whose output size depends on a numeric argument and therefore has no static bound.
pub(super) const REFUSED: &[&str] = &["batch", "format", "indent", "pprint", "slice"];

/// All filters with a known bound.
pub(super) fn filters() -> impl Iterator<Item = &'static str> {
    [PICK, TEXTS, NUMBERS, &["chain", "map", "zip"]].into_iter().flatten().copied()
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, ExpressionError> {
    Err(ExpressionError::Invalid(reason.into()))
}

/// Checks one expression: a condition, or a string that is a single expression.
pub(super) fn check_expression(text: &str) -> Result<(), ExpressionError> {
    check_tokens(text, true)?;
    let expression = parse_expr(text).map_err(expression_error)?;
    SizeBound { data: PAYLOAD_BYTES as u64 }.of(&expression).map(drop)
}

/// Checks a text with embedded expressions.
pub(super) fn check_template(text: &str) -> Result<(), ExpressionError> {
    check_tokens(text, false)?;
    let template = parse(text, "", SyntaxConfig::default()).map_err(expression_error)?;
    SizeBound { data: PAYLOAD_BYTES as u64 }.statement(&template)
}

/// Limits the number of tokens. `a+a+a…` nests once per operator, and walking the tree uses stack for each level.
fn check_tokens(text: &str, in_expression: bool) -> Result<(), ExpressionError> {
    match tokenize(text, in_expression, SyntaxConfig::default()).take_while(Result::is_ok).count() {
        0..=EXPRESSION_TOKENS => Ok(()),
        _ => refuse(format!("it can have at most {EXPRESSION_TOKENS} tokens")),
    }
}

/// Computes the maximum size of a value as text.
struct SizeBound {
    /// Maximum size of a variable: the event, or an item of a loop.
    data: u64,
}

impl SizeBound {
    fn statement(&self, statement: &Stmt<'_>) -> Result<(), ExpressionError> {
        match statement {
            Stmt::Template(template) => self.all(&template.children),
            Stmt::EmitRaw(_) => Ok(()),
            Stmt::EmitExpr(emit) => self.of(&emit.expr).map(drop),
            Stmt::IfCond(condition) => {
                self.of(&condition.expr)?;
                self.all(&condition.true_body)?;
                self.all(&condition.false_body)
            }
            Stmt::ForLoop(each) if !each.recursive => {
                let inside = SizeBound { data: self.data.max(self.of(&each.iter)?) };
                each.filter_expr.as_ref().map(|filter| inside.of(filter)).transpose()?;
                inside.all(&each.body)?;
                self.all(&each.else_body)
            }
            // `set` and `with` could double a variable repeatedly.
            _ => refuse("only the statements `for` and `if` are supported"),
        }
    }

    fn all(&self, statements: &[Stmt<'_>]) -> Result<(), ExpressionError> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn of(&self, expression: &Expr<'_>) -> Result<u64, ExpressionError> {
        let bytes = match expression {
            Expr::Var(_) => self.data,
            Expr::Const(constant) => constant.value.as_str().map_or(NUMBER, |text| text.len() as u64),
            Expr::Slice(slice) => {
                for bound in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.of(bound)?;
                }
                self.of(&slice.expr)?
            }
            Expr::UnaryOp(unary) => self.of(&unary.expr)?,
            Expr::BinOp(binary) => self.binary(binary)?,
            Expr::Compare(compare) => {
                self.of(&compare.expr)?;
                compare.ops.iter().try_for_each(|op| self.of(&op.expr).map(drop))?;
                NUMBER
            }
            Expr::IfExpr(choice) => {
                self.of(&choice.test_expr)?;
                let otherwise = choice.false_expr.as_ref().map(|otherwise| self.of(otherwise)).transpose()?;
                self.of(&choice.true_expr)?.max(otherwise.unwrap_or(0))
            }
            Expr::Filter(filter) => self.filter(filter)?,
            Expr::Test(test) => {
                self.of(&test.expr)?;
                self.arguments(&test.args)?;
                NUMBER
            }
            Expr::GetAttr(attribute) => self.of(&attribute.expr)?,
            Expr::GetItem(item) => {
                self.of(&item.subscript_expr)?;
                self.of(&item.expr)?
            }
            Expr::Call(call) => self.call(call)?,
            Expr::List(list) => self.sum(&list.items)?,
            Expr::Tuple(tuple) => self.sum(&tuple.items)?,
            Expr::Map(map) => self.sum(&map.keys)?.saturating_add(self.sum(&map.values)?),
        };
        match bytes {
            0..=EXPRESSION_VALUE_BYTES => Ok(bytes),
            _ => refuse(format!("it could produce a value of more than {} MiB", EXPRESSION_VALUE_BYTES >> 20)),
        }
    }

    fn sum(&self, parts: &[Expr<'_>]) -> Result<u64, ExpressionError> {
        parts.iter().try_fold(NUMBER, |sum, part| Ok(self.of(part)?.saturating_add(NUMBER).saturating_add(sum)))
    }

    fn arguments(&self, arguments: &[CallArg<'_>]) -> Result<u64, ExpressionError> {
        arguments.iter().try_fold(0, |sum: u64, argument| match argument {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => Ok(self.of(value)?.saturating_add(sum)),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => refuse("argument unpacking is not supported"),
        })
    }

    fn binary(&self, binary: &BinOp<'_>) -> Result<u64, ExpressionError> {
        let (left, right) = (self.of(&binary.left)?, self.of(&binary.right)?);
        match binary.op {
            BinOpKind::Add => Ok(left.saturating_add(right)),
            BinOpKind::Concat => Ok(as_text(&binary.left, left).saturating_add(as_text(&binary.right, right))),
            BinOpKind::ScAnd | BinOpKind::ScOr => Ok(left.max(right)),
            // A string or a list times a number repeats it.
            BinOpKind::Mul if !is_number(&binary.left) || !is_number(&binary.right) => {
                let times = [(&binary.left, right), (&binary.right, left)]
                    .into_iter()
                    .find_map(|(factor, of)| literal_number(factor).map(|factor| of.saturating_mul(factor)));
                times.filter(|bytes| *bytes <= EXPRESSION_VALUE_BYTES).map_or_else(|| refuse(NO_NUMBER), Ok)
            }
            _ => Ok(NUMBER),
        }
    }

    fn filter(&self, filter: &Filter<'_>) -> Result<u64, ExpressionError> {
        let input = filter.expr.as_ref().map_or(Ok(self.data), |input| self.of(input))?;
        let arguments = self.arguments(&filter.args)?;
        let text = || filter.expr.as_ref().map_or(input, |expression| as_text(expression, input));
        let many = |of: u64| of.saturating_mul(arguments.saturating_add(1));
        Ok(match (filter.name, &filter.args[..]) {
            (name, _) if REFUSED.contains(&name) => return refuse(format!("the filter `{name}` is not supported")),
            (name, _) if NUMBERS.contains(&name) => NUMBER,
            (name, _) if PICK.contains(&name) => input.saturating_add(arguments),
            ("tojson", _) => input.saturating_mul(ESCAPED),
            ("join" | "replace", _) => many(text()),
            (name, _) if TEXTS.contains(&name) => text(),
            ("map", [CallArg::Kwarg("attribute", _), ..]) => input.saturating_add(arguments),
            ("map", [CallArg::Pos(Expr::Const(of))]) => match of.value.as_str() {
                Some(name) if NUMBERS.contains(&name) || PICK.contains(&name) => input,
                _ => input.saturating_mul(ESCAPED),
            },
            // An unlisted filter, or an unknown name that the compiler rejects later.
            _ => many(input.saturating_mul(ESCAPED)),
        })
    }

    fn call(&self, call: &Call<'_>) -> Result<u64, ExpressionError> {
        let arguments = self.arguments(&call.args)?;
        match &call.expr {
            Expr::Var(name) if name.id == "range" => Ok(RANGE),
            Expr::Var(name) if name.id == "dict" => Ok(arguments.saturating_add(NUMBER)),
            Expr::GetAttr(method) => Ok(self.of(&method.expr)?.saturating_add(arguments)),
            _ => refuse("only the functions `range` and `dict` are supported"),
        }
    }
}

/// Returns the maximum size of a value when it is converted to text.
fn as_text(expression: &Expr<'_>, bytes: u64) -> u64 {
    let is_text = match expression {
        Expr::Var(_) | Expr::Const(_) | Expr::GetAttr(_) => true,
        Expr::BinOp(binary) => !matches!(binary.op, BinOpKind::Add | BinOpKind::ScAnd | BinOpKind::ScOr),
        Expr::Filter(filter) => TEXTS.contains(&filter.name) || NUMBERS.contains(&filter.name),
        _ => false,
    };
    if is_text { bytes } else { bytes.saturating_mul(ESCAPED) }
}

const NO_NUMBER: &str =
    "multiplication requires numbers: convert an operand with `| float` or `| int`, as in `data.n | float * 100`";

/// Returns the absolute value of a numeric literal.
fn literal_number(expression: &Expr<'_>) -> Option<u64> {
    let Expr::Const(constant) = expression else { return None };
    f64::try_from(constant.value.clone()).ok().map(|number| number.abs().ceil() as u64)
}

/// Returns true if the expression is a number, or fails, for every event.
fn is_number(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(constant) => constant.value.is_number(),
        Expr::UnaryOp(unary) => is_number(&unary.expr),
        Expr::BinOp(binary) => match binary.op {
            BinOpKind::Sub | BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem | BinOpKind::Pow => true,
            BinOpKind::Add | BinOpKind::Mul => is_number(&binary.left) && is_number(&binary.right),
            _ => false,
        },
        Expr::Filter(filter) => NUMBERS.contains(&filter.name),
        _ => false,
    }
}
