#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;

use super::*;

/// The data of each complete event, and of an incomplete event at the end.
#[derive(Debug, Default, PartialEq)]
struct Events {
    whole: Vec<String>,
    open: Vec<u8>,
}

impl EventSink for Events {
    type Error = ();

    fn data(&mut self, piece: &[u8]) -> Result<(), ()> {
        self.open.extend_from_slice(piece);
        Ok(())
    }

    fn end_event(&mut self) -> Result<(), ()> {
        self.whole.push(String::from_utf8(std::mem::take(&mut self.open)).unwrap());
        Ok(())
    }
}

fn read(bytes: &[u8], piece_bytes: usize) -> Events {
    let (mut reader, mut events) = (EventReader::new(), Events::default());
    for piece in bytes.chunks(piece_bytes) {
        reader.feed(piece, &mut events).unwrap();
    }
    events
}

#[test]
fn data_is_told_from_everything_else() {
    let cases: [(&str, &[&str], &str); 11] = [
        ("data: a\n\n", &["a"], ""),
        ("data:a\r\n\r\ndata:  b\r\n\r\n", &["a", " b"], ""),
        ("data: a\r\rdata: b\n\r\n", &["a", "b"], ""),
        ("data: a\ndata: b\n\n", &["a\nb"], ""),
        ("data: a\ndata\ndata:\ndata:\n\n", &["a\n\n"], ""),
        (": alive\n\n:\n\ndata: a\n\n: alive\n\n", &["a"], ""),
        ("event: x\nid: 7\nretry: 3\ndata: a\n\n", &["a"], ""),
        ("dat: a\ndatas: a\nDATA: a\n data: a\n\n", &[], ""),
        ("\n\n\r\n\r\n", &[], ""),
        ("data: a: b data: c\n\n", &["a: b data: c"], ""),
        ("data: a\n\ndata: b\n", &["a"], "b"),
    ];
    for (text, whole, open) in cases {
        let expected = Events {
            whole: whole.iter().map(|data| (*data).to_owned()).collect(),
            open: open.as_bytes().to_vec(),
        };
        for piece_bytes in [1, 2, 3, usize::MAX] {
            assert_eq!(read(text.as_bytes(), piece_bytes), expected, "{text:?} by {piece_bytes}");
        }
    }
}

#[test]
fn an_error_of_the_sinks_ends_the_reading() {
    struct Refuses(usize);
    impl EventSink for Refuses {
        type Error = &'static str;
        fn data(&mut self, _piece: &[u8]) -> Result<(), &'static str> {
            self.0 += 1;
            Err("no")
        }
        fn end_event(&mut self) -> Result<(), &'static str> {
            Ok(())
        }
    }
    let mut sink = Refuses(0);
    assert_eq!(EventReader::new().feed(b"data: a\n\ndata: b\n\n", &mut sink), Err("no"));
    assert_eq!(sink.0, 1);
}

proptest! {
    #[test]
    fn any_split_of_any_bytes_gives_the_same_events(
        text in "(data:|data: |da|:|\r\n|\n|\r|[a-c ]{0,3}){0,40}",
        piece_bytes in 1_usize..9,
    ) {
        prop_assert_eq!(read(text.as_bytes(), piece_bytes), read(text.as_bytes(), usize::MAX));
    }
}
