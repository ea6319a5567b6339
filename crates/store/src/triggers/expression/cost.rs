//! Limits the cost of one evaluation. Fuel limits the number of steps; the cost counts what each step reads, so that
//! `data | reject('in', data)` on a large event is cut off and not quadratic.
//!
//! Three places charge: access to the event (`data.rs`), filters, and tests. A step that charges nothing reads at most what
//! one of them has returned. An expression can repeat such steps only by its length, so the budget is divided by the
//! number of its tokens.

use std::cell::Cell;
use std::time::{Duration, Instant};

use domain::limits::{EXPRESSION_COST, EXPRESSION_DEADLINE_MS};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{ExpressionError, builtins};

/// Charge for one item of a list or a map. Reading it takes about as long as reading this many bytes of text.
pub(super) const ITEM: u64 = 32;
/// Charge for one item of a list that a filter has built.
const BUILT_ITEM: u64 = 4;
/// Factor for filters that compare their items with each other.
const COMPARISONS: u64 = 32;
/// Charges between two looks at the clock.
const CHARGES_PER_LOOK: u32 = 256;
/// Expressions with fewer tokens have the budget of this many.
const MIN_TOKENS: usize = 8;

#[derive(Clone, Copy)]
struct Meter {
    left: u64,
    charges: u32,
    /// `None` outside of an evaluation: compilation charges nothing.
    deadline: Option<Instant>,
}

const IDLE: Meter = Meter { left: u64::MAX, charges: 0, deadline: None };

thread_local! {
    /// The meter of the evaluation that runs on this thread. Objects of minijinja get no argument that could carry it.
    static METER: Cell<Meter> = const { Cell::new(IDLE) };
}

/// Evaluates `text` by `evaluate`, which must not outlive the call, within the budget.
pub(super) fn within_budget<T>(
    text: &str,
    in_expression: bool,
    evaluate: impl FnOnce() -> Result<T, ExpressionError>,
) -> Result<T, ExpressionError> {
    let tokens = minijinja::machinery::tokenize(text, in_expression, SyntaxConfig::default());
    let tokens = tokens.take_while(Result::is_ok).count().max(MIN_TOKENS);
    let deadline = Instant::now() + Duration::from_millis(EXPRESSION_DEADLINE_MS);
    METER.set(Meter { left: EXPRESSION_COST / tokens as u64, charges: 0, deadline: Some(deadline) });
    let result = evaluate();
    let spent = METER.replace(IDLE).left == 0;
    if spent { Err(ExpressionError::TooExpensive) } else { result }
}

/// Charges the running evaluation. Fails from the moment on at which its budget is spent or its deadline has passed.
pub(super) fn charge(units: u64) -> Result<(), Error> {
    let mut meter = METER.get();
    let Some(deadline) = meter.deadline else { return Ok(()) };
    meter.left = meter.left.saturating_sub(units);
    meter.charges = meter.charges.wrapping_add(1);
    if meter.charges.is_multiple_of(CHARGES_PER_LOOK) && Instant::now() > deadline {
        meter.left = 0;
    }
    METER.set(meter);
    if meter.left > 0 { Ok(()) } else { Err(Error::new(ErrorKind::InvalidOperation, "the budget is spent")) }
}

/// The charge for reading a value that did not come from the event: texts, and lists that filters have built.
fn size(value: &Value) -> u64 {
    if let Some(text) = value.as_str() {
        return text.len() as u64;
    }
    if let Some(items) = value.downcast_object_ref::<Vec<Value>>() {
        return items.iter().map(|item| BUILT_ITEM + item.as_str().map_or(0, str::len) as u64).sum();
    }
    // Lists and maps of the event charge as they are read.
    1
}

/// Filters that need no charge of their own: they call a test or a filter for each item, which charges.
const CALLBACKS: &[&str] = &["map", "reject", "rejectattr", "select", "selectattr"];
const SORTING: &[&str] = &["dictsort", "groupby", "sort", "unique"];
/// Tests that read more than a word of their operands.
const TESTS: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "endingwith",
    "eq",
    "equalto",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "le",
    "lessthan",
    "lower",
    "lt",
    "ne",
    "sameas",
    "startingwith",
    "upper",
];

/// Makes the filters and tests of the environment charge for their arguments.
pub(super) fn meter(environment: &mut Environment<'static>, filters: impl Iterator<Item = &'static str>) {
    for name in filters.filter(|name| !CALLBACKS.contains(name)) {
        let factor = if SORTING.contains(&name) { COMPARISONS } else { 1 };
        environment.add_filter(name, move |arguments: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let arguments = arguments.into_values();
            charge(arguments.iter().map(size).sum::<u64>() * factor)?;
            builtins().empty_state().apply_filter(name, &arguments)
        });
    }
    for name in TESTS {
        environment.add_test(*name, move |arguments: Rest<ValueOrKwargs>| -> Result<bool, Error> {
            let arguments = arguments.into_values();
            charge(arguments.iter().map(size).sum::<u64>())?;
            builtins().empty_state().perform_test(name, &arguments)
        });
    }
}
