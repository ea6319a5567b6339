//! Expressions and mappings of triggers, evaluated by minijinja with limited fuel and a limited cost.
//!
//! A filter's `when` is one expression. A mapping is JSON whose strings can contain `{{ … }}`: a string that consists of one
//! expression becomes the value of that expression with its type. Any other string is rendered as text.
//!
//! The module is in the store and not in the engine because filters and targets are parsed here. No transaction evaluates an
//! expression: the dispatcher does, on a thread that may block.

mod cost;
mod data;
mod growth;

use std::io;
use std::sync::LazyLock;

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::Value as Json;

use cost::within_budget;
use domain::limits::{EXPRESSION_FUEL, EXPRESSION_VALUE_BYTES, JSON_DEPTH};

/// The variables of an expression: `event` and `data`. Cheap to clone.
#[derive(Clone)]
pub struct Scope(Value);

impl Scope {
    /// Parses both variables from JSON.
    pub fn new(event: &str, data: &str) -> Result<Self, ExpressionError> {
        let parse = |text: &str| serde_json::from_str::<Json>(text).map_err(invalid);
        Ok(Self(data::members_of([("event".into(), parse(event)?), ("data".into(), parse(data)?)])))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("{0}")]
    Invalid(String),
    /// The evaluation reads too much for this event. It would do so again.
    #[error("the expression is too expensive for an event of this size: it reads the event too many times")]
    TooExpensive,
}

fn invalid(error: impl ToString) -> ExpressionError {
    ExpressionError::Invalid(error.to_string())
}

static BUILTINS: LazyLock<Environment<'static>> = LazyLock::new(plain_environment);
static METERED: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = plain_environment();
    cost::meter(&mut environment, growth::filters());
    environment
});

/// The filters and tests without charges.
fn builtins() -> &'static Environment<'static> {
    &BUILTINS
}

fn environment() -> Environment<'static> {
    METERED.clone()
}

fn plain_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(EXPRESSION_FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    growth::REFUSED.iter().for_each(|filter| environment.remove_filter(filter));
    // The built-in `tojson` accepts an arbitrary indentation and can therefore use unbounded memory.
    environment.add_filter("tojson", |value: Value| {
        serde_json::to_string(&value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
    });
    environment
}

fn expression_error(error: minijinja::Error) -> ExpressionError {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text = format!("{text}: {source}");
    }
    ExpressionError::Invalid(text)
}

/// Checks that the expression compiles and that its memory use is bounded.
pub fn check_condition(expression: &str) -> Result<(), ExpressionError> {
    growth::check_expression(expression)?;
    environment().compile_expression(expression).map(|_| ()).map_err(expression_error)
}

/// Evaluates a condition.
pub fn is_true(expression: &str, scope: &Scope) -> Result<bool, ExpressionError> {
    let environment = environment();
    let compiled = environment.compile_expression(expression).map_err(expression_error)?;
    within_budget(expression, true, || {
        compiled.eval(scope.0.clone()).map(|value| value.is_true()).map_err(expression_error)
    })
}

/// Checks that every expression in the mapping compiles and that its memory use is bounded.
pub fn check_mapping(mapping: &Json) -> Result<(), ExpressionError> {
    let environment = environment();
    let mut failed = Ok(());
    walk(mapping, &mut |text| {
        if failed.is_err() {
            return;
        }
        failed = match whole_expression(text) {
            Some(expression) => growth::check_expression(expression)
                .and_then(|()| environment.compile_expression(expression).map(|_| ()).map_err(expression_error)),
            None => growth::check_template(text)
                .and_then(|()| environment.template_from_str(text).map(|_| ()).map_err(expression_error)),
        };
    });
    failed
}

fn walk(mapping: &Json, visit: &mut impl FnMut(&str)) {
    match mapping {
        Json::String(text) if is_template(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        Json::Object(members) => members.values().for_each(|value| walk(value, visit)),
        _ => {}
    }
}

/// Evaluates a mapping.
pub fn map(mapping: &Json, scope: &Scope) -> Result<Json, ExpressionError> {
    evaluate(&environment(), mapping, scope, 0)
}

/// Renders a string with its expressions replaced. A string without expressions is returned unchanged.
pub fn render(text: &str, scope: &Scope) -> Result<String, ExpressionError> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    render_bounded(&environment(), text, scope)
}

/// Renders a template into a bounded buffer: a loop can write one value many times.
fn render_bounded(environment: &Environment<'_>, text: &str, scope: &Scope) -> Result<String, ExpressionError> {
    let mut written = Bounded(Vec::new());
    let template = environment.template_from_str(text).map_err(expression_error)?;
    within_budget(text, false, || {
        template.render_captured_to(scope.0.clone(), &mut written).map(drop).map_err(expression_error)
    })?;
    String::from_utf8(written.0).map_err(invalid)
}

struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > EXPRESSION_VALUE_BYTES {
            return Err(io::Error::other(format!("the rendered text exceeds {} MiB", EXPRESSION_VALUE_BYTES >> 20)));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns true if the text contains an expression, a statement or a comment.
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

fn evaluate(
    environment: &Environment<'_>,
    mapping: &Json,
    scope: &Scope,
    depth: usize,
) -> Result<Json, ExpressionError> {
    if depth > JSON_DEPTH {
        return Err(ExpressionError::Invalid(format!("a mapping can nest at most {JSON_DEPTH} levels")));
    }
    Ok(match mapping {
        Json::String(text) if is_template(text) => match whole_expression(text) {
            Some(expression) => {
                let compiled = environment.compile_expression(expression).map_err(expression_error)?;
                within_budget(expression, true, || {
                    let value = compiled.eval(scope.0.clone()).map_err(expression_error)?;
                    serde_json::to_value(&value).map_err(invalid)
                })?
            }
            None => Json::String(render_bounded(environment, text, scope)?),
        },
        Json::Array(items) => {
            let evaluate = |item| evaluate(environment, item, scope, depth + 1);
            Json::Array(items.iter().map(evaluate).collect::<Result<_, _>>()?)
        }
        Json::Object(members) => {
            let evaluate = |(name, value): (&String, &Json)| {
                evaluate(environment, value, scope, depth + 1).map(|value| (name.clone(), value))
            };
            Json::Object(members.iter().map(evaluate).collect::<Result<_, _>>()?)
        }
        plain => plain.clone(),
    })
}

/// Returns the expression inside `{{ … }}` if the text consists of nothing else.
fn whole_expression(text: &str) -> Option<&str> {
    let inside = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    (!inside.contains("{{") && !inside.contains("}}")).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::limits::EXPRESSION_BYTES;
    use serde_json::json;

    fn scope() -> Scope {
        let event = r#"{"op": "set", "depth": 0, "key": "a"}"#;
        Scope::new(event, r#"{"n": 7, "user": {"name": "Ann"}, "list": [1, 2]}"#).expect("a scope")
    }

    /// Requirement T2.
    #[test]
    fn a_condition_reads_the_event_and_its_data() {
        let check = |expression: &str| is_true(expression, &scope());
        assert_eq!(check("data.n > 5 and event.op == 'set'"), Ok(true));
        assert_eq!(check("data.user.name is startingwith('B')"), Ok(false));
        assert_eq!(check("data.missing.deeper == 1"), Ok(false));
        assert_eq!(check("2 in data.list"), Ok(true));
        assert!(check_condition("data.n >").is_err() && check_condition("data.n > 1").is_ok());
    }

    /// Requirement T2.
    #[test]
    fn a_mapping_keeps_types_and_renders_templates() {
        let mapping =
            json!({"n": "{{ data.n + 1 }}", "all": ["{{ data.list }}", "Hello {{ data.user.name }}!"], "x": 1});
        let mapped = map(&mapping, &scope()).expect("maps");
        assert_eq!(mapped, json!({"n": 8, "all": [[1, 2], "Hello Ann!"], "x": 1}));
        assert!(check_mapping(&json!({"a": ["{{ data. }}"]})).is_err());
        assert!(check_mapping(&mapping).is_ok());
    }

    /// Requirement T2.
    #[test]
    fn an_endless_expression_runs_out_of_fuel() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
        assert!(render(endless, &scope()).expect_err("out of fuel").to_string().contains("fuel"));
        assert!(is_true("'x' * 10000000000 == ''", &scope()).is_err());
    }

    /// Requirement T2.
    #[test]
    fn an_evaluation_that_reads_the_event_too_often_is_cut_off() {
        let numbers: Vec<usize> = (0..100_000).collect();
        let long = vec!["x".repeat(1_000); 1_000];
        for (data, expression) in [
            (json!(numbers), "data | reject('in', data) | list | length > 0"),
            (json!(numbers), "data | list | select('in', data | list) | list | length > 0"),
            (json!(numbers), "data | map('string') | reject('in', data | map('string') | list) | list | length > 0"),
            (json!(long), "data | select('in', data | join(',')) | list | length > 2000"),
            (json!(long), "data | select('startingwith', data | join(',')) | list | length > 2000"),
        ] {
            let scope = Scope::new("{}", &data.to_string()).expect("a scope");
            assert_eq!(check_condition(expression), Ok(()), "{expression}");
            let started = std::time::Instant::now();
            assert_eq!(is_true(expression, &scope), Err(ExpressionError::TooExpensive), "{expression}");
            assert!(started.elapsed().as_secs() < 5, "{expression}: {:?}", started.elapsed());
        }
        let scope = Scope::new("{}", &json!({"text": "x".repeat(1 << 20)}).to_string()).expect("a scope");
        let loops = "{% for a in range(3000) %}{% if 'y' in data.text %}y{% endif %}{% endfor %}";
        assert_eq!(render(loops, &scope), Err(ExpressionError::TooExpensive));
    }

    /// Requirement T2.
    #[test]
    fn an_evaluation_may_read_a_large_event_a_few_times() {
        let items: Vec<Json> = (0..4_000).map(|n| json!({"id": n, "name": format!("item {n}"), "ok": true})).collect();
        let scope = Scope::new("{}", &json!({"items": items}).to_string()).expect("a scope");
        for expression in [
            "data['items'] | selectattr('ok') | list | length == 4000",
            "data['items'] | map(attribute='id') | sort | last == 3999",
            "3999 in data['items'] | map(attribute='id') | list",
            "(data | tojson | length) > 100000",
        ] {
            assert_eq!(is_true(expression, &scope), Ok(true), "{expression}");
        }
    }

    /// Requirement T2.
    #[test]
    fn an_expression_with_unbounded_memory_is_rejected() {
        let deep = |link: &str| format!("data.n{}", link.repeat(EXPRESSION_BYTES / link.len() - 10));
        let chain = ["'x' * 99999999"; 300].join(" ~ ");
        for bad in [
            "'x' * 99999999",
            "data.list * data.n",
            "data.text * 1000",
            "[1] * 99999999",
            "data.text | replace('', data.text)",
            "data.list | join(data.text)",
            "data.text | tojson | tojson | tojson | tojson",
            "[[[['\\'] ~ ''] ~ ''] ~ ''] ~ ''",
            "'%099999999d' | format(1)",
            "[1] | batch(99999999, 'x')",
            "'x' | indent(99999999)",
            "range(100000) | list | join(data.text)",
            "namespace(x=1)",
            &chain,
            &deep("+1"),
            &deep(".a"),
            &deep("|e"),
            &format!("{}1", "not ".repeat(4_000)),
            &format!("{}1", "-".repeat(8_000)),
        ] {
            assert!(check_condition(bad).is_err(), "{}", &bad[..bad.len().min(80)]);
            assert!(
                check_mapping(&json!({"a": format!("{{{{ {bad} }}}} ")})).is_err(),
                "{}",
                &bad[..bad.len().min(80)]
            );
        }
        for bad in [
            "{% set x = data.text %}{% set x = x ~ x %}{{ x }}",
            "{% with x = data.text ~ data.text %}{{ x }}{% endwith %}",
        ] {
            assert!(check_mapping(&json!(bad)).is_err(), "{bad}");
        }
        for good in [
            "data.n * 2",
            "data.n | float * 3600 * 1000 + data.m | int * 7",
            "(data.a - data.b) / 7 * (data.c | length)",
            "data.list | map(attribute='name') | list | sort | join(', ') | upper",
            "data.a ~ ' ' ~ data.b ~ ' ' ~ (data.c or 'none')",
            "{'a': data.a, 'b': [data.b, 1]} | tojson",
        ] {
            assert_eq!(check_condition(good), Ok(()), "{good}");
        }
        let many = "{% for a in range(9999) %}{{ data.text }}{% endfor %}";
        assert_eq!(check_mapping(&json!(many)), Ok(()));
        let scope = Scope::new("{}", &json!({"text": "x".repeat(100_000)}).to_string()).expect("a scope");
        assert!(render(many, &scope).is_err(), "the rendered size is bounded");
    }
}
