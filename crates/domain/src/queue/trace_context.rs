//! The trace context of a job: the header `traceparent` of W3C Trace Context.

/// A valid `traceparent`, for example `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    text: String,
}

impl TraceContext {
    /// Returns the context, or `None` if the text has another form. A later version may have more fields; they are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('-').collect();
        let [version, trace, parent, flags, rest @ ..] = fields.as_slice() else { return None };
        let is_hex = |field: &str, length: usize| {
            field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_zero = |field: &str| field.bytes().all(|byte| byte == b'0');
        let is_valid = is_hex(version, 2)
            && *version != "ff"
            && is_hex(trace, 32)
            && !is_zero(trace)
            && is_hex(parent, 16)
            && !is_zero(parent)
            && is_hex(flags, 2)
            && (*version != "00" || rest.is_empty());
        is_valid.then(|| Self { text: format!("00-{trace}-{parent}-{flags}") })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The id of the trace in hexadecimal.
    pub fn trace_id(&self) -> &str {
        &self.text[3..35]
    }

    /// The id of the parent span in hexadecimal.
    pub fn parent_id(&self) -> &str {
        &self.text[36..52]
    }

    /// The flags in hexadecimal.
    pub fn flags(&self) -> &str {
        &self.text[53..55]
    }

    /// The HTTP header that passes the context on.
    pub fn header(&self) -> (String, String) {
        ("traceparent".into(), self.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_context_is_unchanged_and_a_later_version_loses_its_extra_fields() {
        let parsed = |text: &str| TraceContext::parse(text).map(|context| context.text);
        assert_eq!(parsed(VALID).as_deref(), Some(VALID));
        let context = TraceContext::parse(VALID).expect("it is valid");
        assert_eq!([context.trace_id(), context.parent_id(), context.flags()].join("-"), VALID[3..]);
        assert_eq!(parsed(&format!("cc{}-more", &VALID[2..])).as_deref(), Some(VALID));
    }

    #[test]
    fn any_other_text_is_no_context() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00".into(),
            format!("{VALID}-more"),
            VALID.replace("00-", "ff-"),
            VALID.to_uppercase(),
            VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros),
            VALID.replace("00f067aa0ba902b7", "0000000000000000"),
            VALID[..54].into(),
            VALID.replace('f', "é"),
        ] {
            assert_eq!(TraceContext::parse(&text), None, "{text}");
        }
    }
}
