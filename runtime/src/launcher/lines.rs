//! Cuts a worker's output into lines and takes its events out.

use serde_json::Value;

use crate::report;

/// A longer line is shown in pieces: a worker cannot make the launcher hold more than this.
const LONGEST_LINE: usize = 64 << 10;

/// A longer event is not taken for one.
const LONGEST_EVENT: usize = 16 << 20;

/// What a worker wrote.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    /// A line of text without its end, in whatever encoding.
    Text(Vec<u8>),
    /// An event.
    Event(String, Value),
}

/// Collects bytes until they make a line.
pub(super) struct Lines {
    /// Whether there may be events among the lines.
    events: bool,
    pending: Vec<u8>,
    /// How much of `pending` is known to hold no line end.
    searched: usize,
}

impl Lines {
    /// Nothing yet, of a stream with events or without.
    pub fn new(events: bool) -> Lines {
        Lines { events, pending: Vec::new(), searched: 0 }
    }

    /// Takes bytes, and hands over every line that they complete.
    pub fn push(&mut self, bytes: &[u8], mut piece: impl FnMut(Piece)) {
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = self.pending[start + self.searched..].iter().position(|&byte| byte == b'\n')
        {
            let end = start + self.searched + length;
            split(&self.pending[start..end], self.events, &mut piece);
            start = end + 1;
            self.searched = 0;
        }
        self.pending.drain(..start);
        if self.pending.len() > LONGEST_LINE && !self.in_event() {
            let mark = if self.events { find_mark(&self.pending) } else { None };
            let mark = mark.unwrap_or(self.pending.len());
            piece(Piece::Text(self.pending.drain(..mark).collect()));
        }
        self.searched = self.pending.len();
    }

    /// Hands over what stands after the last line end.
    pub fn finish(&mut self, mut piece: impl FnMut(Piece)) {
        if !self.pending.is_empty() {
            split(&std::mem::take(&mut self.pending), self.events, &mut piece);
        }
        self.searched = 0;
    }

    fn in_event(&self) -> bool {
        self.events && self.pending.starts_with(report::MARK) && self.pending.len() <= LONGEST_EVENT
    }
}

/// One line: text, or an event, or an event behind text whose line was never ended.
fn split(line: &[u8], events: bool, piece: &mut impl FnMut(Piece)) {
    if events
        && let Some(mark) = find_mark(line)
        && let Some((kind, body)) = line[mark..].strip_prefix(report::MARK).and_then(report::parse)
    {
        if mark > 0 {
            piece(Piece::Text(line[..mark].to_vec()));
        }
        piece(Piece::Event(kind, body));
    } else {
        piece(Piece::Text(line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
    }
}

/// Where an event begins; at the end of the bytes, where one may begin.
fn find_mark(bytes: &[u8]) -> Option<usize> {
    let begins = |rest: &[u8]| rest.starts_with(report::MARK) || report::MARK.starts_with(rest);
    (0..bytes.len()).find(|&at| bytes[at] == report::MARK[0] && begins(&bytes[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<Piece> {
        let (mut lines, mut pieces) = (Lines::new(true), Vec::new());
        chunks.iter().for_each(|chunk| lines.push(chunk, |piece| pieces.push(piece)));
        lines.finish(|piece| pieces.push(piece));
        pieces
    }

    fn text(text: &[u8]) -> Piece {
        Piece::Text(text.to_vec())
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let whole = b"one\n\xff\xfe two\r\n\nthree\x1egleaner {\"kind\":\"k\",\"body\":[1]}\nlast";
        let event = Piece::Event("k".into(), serde_json::json!([1]));
        let expected = [text(b"one"), text(b"\xff\xfe two"), text(b""), text(b"three"), event, text(b"last")];
        for size in 1..whole.len() {
            assert_eq!(cut(&whole.chunks(size).collect::<Vec<_>>()), expected, "chunks of {size}");
        }
    }

    #[test]
    fn a_long_line_comes_in_pieces_and_a_long_event_whole() {
        let line = vec![b'x'; 3 * LONGEST_LINE];
        let pieces = cut(&line.chunks(1000).collect::<Vec<_>>());
        assert!(pieces.len() >= 3);
        let lengths = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::Event(..) => panic!("there is no event"),
        });
        assert!(lengths.clone().all(|length| length <= LONGEST_LINE + 1000));
        assert_eq!(lengths.sum::<usize>(), line.len());

        let body = "y".repeat(3 * LONGEST_LINE);
        let event = format!("partial\x1egleaner {{\"kind\":\"k\",\"body\":\"{body}\"}}\n");
        let whole = Piece::Event("k".into(), body.into());
        let pieces = cut(&event.as_bytes().chunks(1000).collect::<Vec<_>>());
        assert_eq!(pieces, [text(b"partial"), whole]);

        let line = [&line[..LONGEST_LINE], b"\x1egle", b"aner {\"kind\":\"k\",\"body\":1}\n"];
        assert_eq!(cut(&[&line[..2].concat(), line[2]])[1], Piece::Event("k".into(), 1.into()));
    }

    #[test]
    fn a_line_that_only_resembles_an_event_is_text() {
        assert_eq!(cut(&[b"\x1egleaner hello\n"]), [text(b"\x1egleaner hello")]);
    }
}
