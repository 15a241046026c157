#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

const FORMAT: Format = Format { magic: b"TEST-1\n", body_bytes_max: 64, tail_bytes_max: 200 };

fn file(bodies: &[&[u8]]) -> Vec<u8> {
    let frames = bodies.iter().flat_map(|body| FORMAT.frame(body).unwrap());
    FORMAT.magic.iter().copied().chain(frames).collect()
}

/// Returns the bodies, and the length of the sound part.
fn read(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, u64), ReadError> {
    let mut reader = Reader::new(Cursor::new(bytes), bytes.len() as u64, FORMAT)?;
    let mut bodies = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        assert_eq!(bytes[frame.offset as usize + HEAD_BYTES..][..frame.body.len()], *frame.body);
        bodies.push(frame.body.to_vec());
    }
    assert!(reader.next_frame()?.is_none(), "the end stays the end");
    assert_eq!(reader.sound_bytes() + reader.torn_bytes(), bytes.len() as u64);
    Ok((bodies, reader.sound_bytes()))
}

#[test]
fn a_frame_has_these_bytes() {
    let head = [5, 0, 0, 0, 0x86, 0xa6, 0x10, 0x36, 0xf0, 0x9e, 0x7d, 0xbd];
    assert_eq!(FORMAT.frame(b"hello").unwrap(), [&head[..], b"hello"].concat());
}

#[test]
fn bodies_that_fit_in_no_frame_are_refused() {
    for bytes in [0, 65] {
        assert_eq!(FORMAT.frame(&vec![1; bytes]), Err(BodyLength { bytes, bytes_max: 64 }));
    }
    assert_eq!(FORMAT.frame(&[1; 64]).map(|frame| frame.len()), Ok(64 + HEAD_BYTES));
}

#[test]
fn a_file_of_another_format_is_refused_and_one_that_is_cut_in_its_magic_is_empty() {
    assert!(matches!(read(b"TEST-2\n"), Err(ReadError::OtherFormat)));
    assert!(matches!(read(b"x"), Err(ReadError::OtherFormat)));
    assert_eq!(read(b"TEST").unwrap(), (Vec::new(), 0));
    assert_eq!(read(b"").unwrap(), (Vec::new(), 0));
    assert_eq!(read(FORMAT.magic).unwrap(), (Vec::new(), 7));
}

#[test]
fn more_damage_than_a_crash_can_leave_is_refused() {
    let mut bytes = file(&[b"a"]);
    let sound = bytes.len() as u64;
    bytes.extend([1; 200]);
    assert_eq!(read(&bytes).unwrap(), (vec![b"a".to_vec()], sound));
    assert_eq!(FORMAT.tail(&bytes[sound as usize..]), Tail::Damaged(Damage::Head));
    bytes.push(1);
    let refused = read(&bytes);
    assert!(matches!(refused, Err(ReadError::Damaged { offset, damage: Damage::Head }) if offset == sound));
}

#[test]
fn a_tail_is_unfinished_or_damaged() {
    let frame = FORMAT.frame(b"hello").unwrap();
    for end in 0..frame.len() {
        assert_eq!(FORMAT.tail(&frame[..end]), Tail::Unfinished, "{end}");
    }
    assert_eq!(FORMAT.tail(&[0; 100]), Tail::Unfinished, "zeros");
    let mut changed = frame.clone();
    changed[HEAD_BYTES] ^= 1;
    assert_eq!(FORMAT.tail(&changed), Tail::Damaged(Damage::Body));
    changed[0] ^= 1;
    assert_eq!(FORMAT.tail(&changed), Tail::Damaged(Damage::Head));
    let long = Format { body_bytes_max: 100, ..FORMAT }.frame(&[1; 100]).unwrap();
    assert_eq!(FORMAT.tail(&long), Tail::Damaged(Damage::Head), "longer than the format allows");
}

fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..6)
}

/// Returns a file, with the end of the magic bytes and of each frame.
fn file_of(bodies: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let bytes = file(&bodies.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut ends = vec![FORMAT.magic.len()];
    for body in bodies {
        ends.push(ends[ends.len() - 1] + HEAD_BYTES + body.len());
    }
    (bytes, ends)
}

proptest! {
    #[test]
    fn a_file_cut_anywhere_has_its_whole_frames(bodies in bodies(), cut in any::<prop::sample::Index>()) {
        let (bytes, ends) = file_of(&bodies);
        let cut = cut.index(bytes.len() + 1);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let (read, sound) = read(&bytes[..cut]).unwrap();
        prop_assert_eq!(sound as usize, if whole == 0 { 0 } else { ends[whole - 1] });
        prop_assert_eq!(&read[..], &bodies[..whole.saturating_sub(1)]);
    }

    #[test]
    fn a_flipped_bit_is_refused_or_in_the_last_frame(
        bodies in bodies(),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let (mut bytes, ends) = file_of(&bodies);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let last_begins = ends[ends.len() - 2];
        match read(&bytes) {
            Ok((read, sound)) => {
                prop_assert!(at >= last_begins, "a bit at {at} was not seen");
                prop_assert_eq!(&read[..], &bodies[..bodies.len() - 1]);
                prop_assert_eq!(sound as usize, last_begins);
            }
            Err(ReadError::Damaged { offset, .. }) => {
                prop_assert!(at < last_begins);
                let begins = ends.iter().rev().find(|end| **end <= at).copied().unwrap();
                prop_assert_eq!(offset as usize, begins);
            }
            Err(ReadError::OtherFormat) => prop_assert!(at < ends[0]),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

/// The parts of a file: the bodies of sound frames, and the lengths of the bytes between them.
fn pieces(bytes: &[u8]) -> Vec<(u64, Result<Vec<u8>, u64>)> {
    let piece = |piece: Piece<'_>| match piece {
        Piece::Frame(frame) => (frame.offset, Ok(frame.body.to_vec())),
        Piece::Damaged { offset, bytes } | Piece::Unfinished { offset, bytes } => (offset, Err(bytes)),
    };
    FORMAT.pieces(bytes).map(piece).collect()
}

#[test]
fn every_sound_frame_before_and_behind_damage_is_a_piece() {
    let bodies: [&[u8]; 4] = [b"first", b"second", b"third", b"fourth"];
    let sound = file(&bodies);
    let all = pieces(&sound);
    assert_eq!(all.iter().map(|(_, body)| body.clone().unwrap()).collect::<Vec<_>>(), bodies);
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        let found: Vec<Vec<u8>> = pieces(&damaged).into_iter().filter_map(|(_, body)| body.ok()).collect();
        // The last frame that begins at or before the damage is lost. The magic bytes are not a frame.
        let lost = all.iter().rposition(|(offset, _)| *offset as usize <= at);
        let expected = bodies.iter().enumerate().filter(|(frame, _)| Some(*frame) != lost);
        assert_eq!(found, expected.map(|(_, body)| body.to_vec()).collect::<Vec<_>>(), "at={at}");
    }
}

#[test]
fn the_pieces_are_the_whole_file_and_tell_an_unfinished_end_from_damage() {
    let sound = file(&[b"first", b"second"]);
    assert_eq!(pieces(&sound[..sound.len() - 3]).last(), Some(&(24, Err(15))));
    let end =
        |bytes: &[u8]| FORMAT.pieces(bytes).last().map(|piece| matches!(piece, Piece::Unfinished { .. }));
    assert_eq!(end(&sound[..sound.len() - 3]), Some(true));
    assert_eq!(end(&[sound.as_slice(), &[0; 30]].concat()), Some(true), "a power cut leaves zeros");
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(end(&damaged), Some(false));
    assert_eq!(end(FORMAT.magic), None);
    assert_eq!(end(&[FORMAT.magic, b"no frame"].concat()), Some(true), "it is shorter than a head");
}
