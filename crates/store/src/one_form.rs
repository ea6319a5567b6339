//! JSON in one form: without white space, the members of every object in the order of their names. Unique keys are made of
//! it, and payloads are told apart by it.

/// The one form of some JSON. Numbers and strings stay as they were written.
pub fn one_form(json: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(json.len());
    // What is open here, from the outside in; an array is none.
    let mut open: Vec<Option<Object>> = Vec::new();
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
            b'{' => open.push(Some(Object { next: text.len(), members: Vec::new() })),
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

/// Copies a string from after its first quote to its last.
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

/// An object that is being written, by places in the text.
struct Object {
    /// Where the next member begins.
    next: usize,
    members: Vec<Member>,
}

struct Member {
    begins: usize,
    name_ends: usize,
}

impl Object {
    /// Puts the members that end the text into order. Most objects come in order, and nothing is moved.
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
        // Of two members with one name the last counts; they stay in their order.
        members.sort_by_key(|(name, _)| *name);
        let members: Vec<&[u8]> = members.into_iter().map(|(_, member)| member).collect();
        text.extend(members.join(&b','));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: &str) {
        assert_eq!(String::from_utf8(one_form(json)).expect("still UTF-8"), expected, "{json}");
    }

    #[test]
    fn white_space_goes_and_what_is_inside_strings_stays() {
        check("{ \"a b\" :\n[1, \"x \\\" y\"] }", r#"{"a b":[1,"x \" y"]}"#);
        check(" [ ] ", "[]");
        check("{ }", "{}");
        check(r#""{\"b\": 1, \"a\": 2}""#, r#""{\"b\": 1, \"a\": 2}""#);
    }

    #[test]
    fn members_are_in_the_order_of_their_names_at_every_level() {
        check(r#"{"b": 2, "a": 1}"#, r#"{"a":1,"b":2}"#);
        let nested = r#"{"b": [{"d": 1, "c": {}}, 5], "a": {"z": [], "y": "}:,{"}}"#;
        check(nested, r#"{"a":{"y":"}:,{","z":[]},"b":[{"c":{},"d":1},5]}"#);
        check(r#"[{"b": 1, "a": 2}, {"d": 1, "c": 2}]"#, r#"[{"a":2,"b":1},{"c":2,"d":1}]"#);
        check(r#"{"b": 1, "a": 1, "a": 2}"#, r#"{"a":1,"a":2,"b":1}"#);
    }

    #[test]
    fn numbers_stay_as_they_were_written_and_items_in_their_order() {
        check("[2, 1.0, 12345678901234567890123, 1e999]", "[2,1.0,12345678901234567890123,1e999]");
    }
}
