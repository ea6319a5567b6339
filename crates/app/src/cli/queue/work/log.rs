//! A program's stderr with bounded size: the beginning and the end are retained.

use std::collections::VecDeque;

const HEAD_BYTES: usize = 5 << 20;
const TAIL_BYTES: usize = 5 << 20;

#[derive(Default)]
pub(super) struct BoundedLog {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    omitted: u64,
}

impl BoundedLog {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (head, tail) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(tail);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.omitted += excess as u64;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// The number of bytes pushed so far.
    pub(super) fn written(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64 + self.omitted
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.omitted > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes omitted …]\n", self.omitted).as_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }

    /// The last complete lines that fit into `bytes`.
    pub(super) fn last(&self, bytes: usize) -> String {
        let length = self.head.len() + self.tail.len();
        let skip = length.saturating_sub(bytes);
        let all = self.head.iter().chain(&self.tail).copied();
        let last: Vec<u8> = all.skip(skip).collect();
        let begin = if skip == 0 { 0 } else { last.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let begin = if begin == last.len() { 0 } else { begin };
        String::from_utf8_lossy(&last[begin..]).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_keeps_its_head_and_tail() {
        let mut log = BoundedLog::default();
        log.push(b"first\n");
        for _ in 0..12 {
            log.push(&vec![b'x'; 1 << 20]);
        }
        log.push(b"\nlast\n");
        let bytes = log.into_bytes();
        let marker = b"bytes omitted";
        assert!(bytes.starts_with(b"first\n") && bytes.ends_with(b"\nlast\n"));
        assert!(bytes.windows(marker.len()).any(|window| window == marker));
        assert!(bytes.len() < HEAD_BYTES + TAIL_BYTES + 100);
    }

    #[test]
    fn the_end_of_the_log_consists_of_whole_lines() {
        let mut log = BoundedLog::default();
        log.push(b"one\ntwo\nthree\n");
        assert_eq!(log.last(100), "one\ntwo\nthree");
        assert_eq!(log.last(8), "three", "a line that does not fit whole is left out");
        assert_eq!(log.last(3), "ee", "unless there is no other");
    }
}
