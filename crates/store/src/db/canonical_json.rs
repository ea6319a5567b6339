//! Canonical JSON: no white space, object members sorted by name. Unique keys are derived from it, and payloads are
//! compared by it.

/// Returns the canonical form of valid JSON. Numbers and strings keep their notation.
pub fn canonical_json(json: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(json.len());
    // The open containers, outermost first; `None` for an array.
    let mut open: Vec<Option<OpenObject>> = Vec::new();
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b'"' => {
                text.push(byte);
                copy_string(&mut bytes, &mut text);
                continue;
            }
            b':' => {
                if let Some(Some(object)) = open.last_mut() {
                    object.members.push(Member { begins: object.next, name_ends: text.len() });
                }
            }
            b'}' | b']' => {
                if let Some(Some(object)) = open.pop() {
                    object.sort(&mut text);
                }
            }
            _ => {}
        }
        text.push(byte);
        match byte {
            b'{' => open.push(Some(OpenObject { next: text.len(), members: Vec::new() })),
            b'[' => open.push(None),
            b',' => {
                if let Some(Some(object)) = open.last_mut() {
                    object.next = text.len();
                }
            }
            _ => {}
        }
    }
    text
}

/// Copies the rest of a string after its opening quote, closing quote included.
fn copy_string(bytes: &mut std::str::Bytes<'_>, text: &mut Vec<u8>) {
    while let Some(byte) = bytes.next() {
        text.push(byte);
        match byte {
            b'"' => return,
            b'\\' => text.extend(bytes.next()),
            _ => {}
        }
    }
}

/// An object that is being written, as offsets into the output.
struct OpenObject {
    /// Offset of the next member.
    next: usize,
    members: Vec<Member>,
}

struct Member {
    begins: usize,
    name_ends: usize,
}

impl OpenObject {
    /// Sorts the members at the end of the output. Most objects arrive sorted, and nothing is moved.
    fn sort(self, text: &mut Vec<u8>) {
        let name = |member: &Member| &text[member.begins..member.name_ends];
        let Some(first) = self.members.first().map(|first| first.begins) else { return };
        if self.members.is_sorted_by(|one, next| name(one) <= name(next)) {
            return;
        }
        let old = text.split_off(first);
        let ends = self.members.iter().skip(1).map(|next| next.begins - 1).chain([first + old.len()]);
        let part = |from: usize, until: usize| &old[from - first..until - first];
        let mut members: Vec<(&[u8], &[u8])> = self
            .members
            .iter()
            .zip(ends)
            .map(|(member, end)| (part(member.begins, member.name_ends), part(member.begins, end)))
            .collect();
        // Of two members with the same name the last one counts, so the sort must be stable.
        members.sort_by_key(|(name, _)| *name);
        let members: Vec<&[u8]> = members.into_iter().map(|(_, member)| member).collect();
        text.extend(members.join(&b','));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: &str) {
        assert_eq!(String::from_utf8(canonical_json(json)).expect("still UTF-8"), expected, "{json}");
    }

    #[test]
    fn white_space_is_removed_except_inside_strings() {
        check("{ \"a b\" :\n[1, \"x \\\" y\"] }", r#"{"a b":[1,"x \" y"]}"#);
        check(" [ ] ", "[]");
        check("{ }", "{}");
        check(r#""{\"b\": 1, \"a\": 2}""#, r#""{\"b\": 1, \"a\": 2}""#);
    }

    #[test]
    fn members_are_sorted_by_name_at_every_level() {
        check(r#"{"b": 2, "a": 1}"#, r#"{"a":1,"b":2}"#);
        let nested = r#"{"b": [{"d": 1, "c": {}}, 5], "a": {"z": [], "y": "}:,{"}}"#;
        check(nested, r#"{"a":{"y":"}:,{","z":[]},"b":[{"c":{},"d":1},5]}"#);
        check(r#"[{"b": 1, "a": 2}, {"d": 1, "c": 2}]"#, r#"[{"a":2,"b":1},{"c":2,"d":1}]"#);
        check(r#"{"b": 1, "a": 1, "a": 2}"#, r#"{"a":1,"a":2,"b":1}"#);
    }

    #[test]
    fn numbers_and_array_order_stay_unchanged() {
        check("[2, 1.0, 12345678901234567890123, 1e999]", "[2,1.0,12345678901234567890123,1e999]");
    }
}
