//! Encodes records as bytes: first the kind, then the fields. Integers are LEB128, and a text is preceded by
//! its length.

mod bias;
mod history;

use rolldock_dispatch::{DispatchId, Fate, Position, PromptUid, StepEnd, TokenTotals, interned_reason};

use super::{
    DispatchRecord, GateRecord, LifeRecord, MetersRecord, Next, Record, RunRecord, StepEndRecord, StepRecord,
    TokensPlace,
};

/// Maximum bytes of a text. A longer text is cut when it is written.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum number of dispatches that one record settles.
pub(super) const SETTLED_MAX: usize = 4096;
/// Maximum number of gates in a record. Runs have fewer.
const GATES_MAX: u64 = 1024;
/// Maximum number of values in a record of the launch's evidence. There are four values for each sample of a
/// group.
const OUTLOOK_MAX: u64 = 1 << 20;

/// The error for bytes that are not a record: the value that the reader expected.
pub(super) type Expected = &'static str;

/// Appends values.
#[derive(Debug, Default)]
pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(super) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.number(end as u64);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
    }

    fn float(&mut self, number: f64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn probability(&mut self, probability: f32) {
        self.0.extend_from_slice(&probability.to_le_bytes());
    }

    fn place(&mut self, place: &TokensPlace) {
        self.number(place.file);
        self.number(place.offset);
        self.number(u64::from(place.length));
    }
}

/// Reads values from the front.
#[derive(Debug)]
pub(super) struct Decoder<'a>(pub(super) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Expected> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("more bytes of a record")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Expected> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, Expected> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if (part << shift) >> shift != part {
                return Err("an integer of 64 bits");
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("an integer of 64 bits")
    }

    pub(super) fn number_u32(&mut self) -> Result<u32, Expected> {
        u32::try_from(self.number()?).map_err(|_| "an integer of 32 bits")
    }

    fn eight(&mut self) -> Result<[u8; 8], Expected> {
        let mut eight = [0; 8];
        eight.copy_from_slice(self.bytes(8)?);
        Ok(eight)
    }

    fn float(&mut self) -> Result<f64, Expected> {
        self.eight().map(f64::from_le_bytes)
    }

    /// A number from `least` to 1.
    fn probability(&mut self, least: f32) -> Result<f32, Expected> {
        let mut four = [0; 4];
        four.copy_from_slice(self.bytes(4)?);
        let probability = f32::from_le_bytes(four);
        (probability >= least && probability <= 1.0).then_some(probability).ok_or("a probability")
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Expected> {
        let length = self.number()?;
        if length > TEXT_BYTES_MAX as u64 {
            return Err("a text of at most 1024 bytes");
        }
        std::str::from_utf8(self.bytes(length as usize)?).map_err(|_| "a text in UTF-8")
    }

    fn id(&mut self) -> Result<DispatchId, Expected> {
        self.number().map(DispatchId)
    }

    fn place(&mut self) -> Result<TokensPlace, Expected> {
        Ok(TokensPlace { file: self.number()?, offset: self.number()?, length: self.number_u32()? })
    }
}

pub(super) fn encode(record: &Record, into: &mut Encoder) {
    match record {
        Record::Run(run) => {
            into.byte(1);
            into.number(u64::from(run.format));
            into.text(&run.run_id);
            into.number(run.started_s);
        }
        Record::Life(life) => {
            into.byte(2);
            into.number(u64::from(life.number));
            into.number(u64::from(life.pid));
            into.number(life.started_s);
        }
        Record::Step(step) => {
            into.byte(3);
            into.number(step.step);
            into.number(step.target);
            into.number(step.policy_version);
        }
        Record::Dispatch(dispatch) => encode_dispatch(dispatch, into),
        Record::End { id, fate, next } => {
            into.byte(5);
            into.number(id.0);
            encode_fate(fate, into);
            encode_next(next, into);
        }
        Record::Settled { ids } => {
            into.byte(6);
            into.number(ids.len() as u64);
            ids.iter().for_each(|id| into.number(id.0));
        }
        Record::StepEnd(ended) => {
            into.byte(7);
            into.number(ended.step);
            into.byte(match ended.end {
                StepEnd::Reached => 0,
                StepEnd::OutOfBatches => 1,
                StepEnd::OutOfPrompts => 2,
                StepEnd::Interrupted => 3,
            });
        }
        Record::Version { version } => {
            into.byte(8);
            into.number(*version);
        }
        Record::Weights { announcement } => {
            into.byte(9);
            into.number(announcement.len() as u64);
            into.0.extend_from_slice(announcement.as_bytes());
        }
        Record::Tokens(tokens) => encode_tokens(tokens, into),
        Record::Meters(meters) => encode_meters(meters, into),
        Record::Bias { number, event } => {
            into.byte(12);
            into.number(*number);
            bias::encode(event, into);
        }
        Record::Rule { early_stop } => {
            into.byte(13);
            into.text(early_stop);
        }
        Record::Outlook { bits } => {
            into.byte(14);
            into.number(bits.len() as u64);
            bits.iter().for_each(|bits| into.0.extend_from_slice(&bits.to_le_bytes()));
        }
        Record::Graded(group) => {
            into.byte(15);
            history::encode(group, into);
        }
    }
}

/// Writes a mask of the counts that are not 0, then these counts.
fn encode_tokens(tokens: &TokenTotals, into: &mut Encoder) {
    into.byte(10);
    let counts = tokens.to_counts();
    let mask = (0..).zip(&counts).filter(|(_, count)| **count > 0).map(|(place, _)| 1_u64 << place).sum();
    into.number(mask);
    counts.iter().filter(|count| **count > 0).for_each(|count| into.number(*count));
}

fn encode_meters(meters: &MetersRecord, into: &mut Encoder) {
    into.byte(11);
    meters.accept_rate.iter().for_each(|bits| into.0.extend_from_slice(&bits.to_le_bytes()));
    into.number(meters.overlong_dropped);
    into.number(meters.overlong_truncated);
    into.number(meters.gates.len() as u64);
    for gate in &meters.gates {
        into.text(&gate.name);
        [gate.passed, gate.rejected, gate.kept].iter().for_each(|count| into.number(*count));
    }
}

fn encode_dispatch(dispatch: &DispatchRecord, into: &mut Encoder) {
    // A dispatch with a chance has a kind of its own, so that other dispatches stay readable for older
    // binaries.
    into.byte(if dispatch.chance.is_some() { 16 } else { 4 });
    into.number(dispatch.id.0);
    into.number(dispatch.number);
    // 0 means no parent. The addition cannot overflow, because a parent's id is below its child's.
    into.number(dispatch.parent.map_or(0, |parent| parent.0 + 1));
    into.0.extend_from_slice(&dispatch.prompt_uid.0.to_le_bytes());
    into.number(dispatch.row);
    into.number(u64::from(dispatch.visit));
    into.number(dispatch.step);
    into.number(dispatch.policy_version);
    into.number(u64::from(dispatch.first_attempt));
    into.number(u64::from(dispatch.returns));
    match dispatch.drawn_to {
        None => into.byte(0),
        Some(position) => {
            into.byte(1);
            into.number(u64::from(position.epoch));
            into.number(position.offset);
        }
    }
    if let Some(chance) = &dispatch.chance {
        history::encode_chance(chance, into);
    }
}

fn encode_fate(fate: &Fate, into: &mut Encoder) {
    match fate {
        Fate::Accepted => into.byte(0),
        Fate::Filtered(reason) => {
            into.byte(1);
            into.text(reason);
        }
        Fate::Stale => into.byte(2),
        Fate::Cancelled => into.byte(3),
        Fate::Requeued => into.byte(4),
        Fate::Carried => into.byte(5),
        Fate::Held => into.byte(6),
        Fate::Failed(reason) => {
            into.byte(7);
            into.text(reason);
        }
    }
}

fn encode_next(next: &Next, into: &mut Encoder) {
    match next {
        Next::Nothing => into.byte(0),
        Next::Again => into.byte(1),
        Next::Anew { first_attempt } => {
            into.byte(2);
            into.number(u64::from(*first_attempt));
        }
        Next::From(place) => {
            into.byte(3);
            into.place(place);
        }
    }
}

/// Reads one record.
pub(super) fn decode(from: &mut Decoder<'_>) -> Result<Record, Expected> {
    match from.byte()? {
        1 => {
            let format = from.number_u32()?;
            Ok(Record::Run(RunRecord { run_id: from.text()?.to_owned(), started_s: from.number()?, format }))
        }
        2 => {
            let (number, pid) = (from.number_u32()?, from.number_u32()?);
            Ok(Record::Life(LifeRecord { number, pid, started_s: from.number()? }))
        }
        3 => {
            let (step, target) = (from.number()?, from.number()?);
            Ok(Record::Step(StepRecord { step, target, policy_version: from.number()? }))
        }
        4 => decode_dispatch(from).map(Record::Dispatch),
        5 => Ok(Record::End { id: from.id()?, fate: decode_fate(from)?, next: decode_next(from)? }),
        6 => {
            let count = from.number()?;
            if count > SETTLED_MAX as u64 {
                return Err("at most 4096 settled dispatches");
            }
            Ok(Record::Settled { ids: (0..count).map(|_| from.id()).collect::<Result<_, _>>()? })
        }
        7 => {
            let step = from.number()?;
            let end = match from.byte()? {
                0 => StepEnd::Reached,
                1 => StepEnd::OutOfBatches,
                2 => StepEnd::OutOfPrompts,
                3 => StepEnd::Interrupted,
                _ => return Err("a known end of a step"),
            };
            Ok(Record::StepEnd(StepEndRecord { step, end }))
        }
        8 => Ok(Record::Version { version: from.number()? }),
        9 => {
            let length = from.number()?;
            // A length that does not fit into `usize` is above the number of bytes that are left.
            let bytes = from.bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
            let announcement = std::str::from_utf8(bytes).map_err(|_| "a text in UTF-8")?.into();
            Ok(Record::Weights { announcement })
        }
        10 => decode_tokens(from).map(Record::Tokens),
        11 => decode_meters(from).map(Record::Meters),
        12 => Ok(Record::Bias { number: from.number()?, event: bias::decode(from)? }),
        13 => Ok(Record::Rule { early_stop: from.text()?.into() }),
        14 => {
            let count = from.number()?;
            if count > OUTLOOK_MAX {
                return Err("at most 1048576 numbers of evidence");
            }
            let bits = (0..count).map(|_| from.eight().map(u64::from_le_bytes));
            Ok(Record::Outlook { bits: bits.collect::<Result<_, _>>()? })
        }
        15 => history::decode(from).map(Record::Graded),
        16 => {
            let dispatch = decode_dispatch(from)?;
            Ok(Record::Dispatch(DispatchRecord { chance: Some(history::decode_chance(from)?), ..dispatch }))
        }
        _ => Err("a known kind of record"),
    }
}

fn decode_tokens(from: &mut Decoder<'_>) -> Result<TokenTotals, Expected> {
    let mut counts = TokenTotals::default().to_counts();
    let mask = from.number()?;
    if mask >> counts.len() != 0 {
        return Err("counts of known buckets");
    }
    for (place, count) in counts.iter_mut().enumerate() {
        if mask >> place & 1 == 1 {
            *count = from.number()?;
        }
    }
    Ok(TokenTotals::from_counts(counts))
}

fn decode_gate(from: &mut Decoder<'_>) -> Result<GateRecord, Expected> {
    let name = from.text()?.into();
    Ok(GateRecord { name, passed: from.number()?, rejected: from.number()?, kept: from.number()? })
}

fn decode_meters(from: &mut Decoder<'_>) -> Result<MetersRecord, Expected> {
    let mut accept_rate = [0; 2];
    for bits in &mut accept_rate {
        *bits = u64::from_le_bytes(from.eight()?);
    }
    let (overlong_dropped, overlong_truncated, gates) = (from.number()?, from.number()?, from.number()?);
    if gates > GATES_MAX {
        return Err("at most 1024 gates");
    }
    let gates = (0..gates).map(|_| decode_gate(from)).collect::<Result<_, _>>()?;
    Ok(MetersRecord { accept_rate, overlong_dropped, overlong_truncated, gates })
}

fn decode_dispatch(from: &mut Decoder<'_>) -> Result<DispatchRecord, Expected> {
    Ok(DispatchRecord {
        id: from.id()?,
        number: from.number()?,
        parent: from.number()?.checked_sub(1).map(DispatchId),
        prompt_uid: PromptUid(u64::from_le_bytes(from.eight()?)),
        row: from.number()?,
        visit: from.number_u32()?,
        step: from.number()?,
        policy_version: from.number()?,
        first_attempt: from.number_u32()?,
        returns: from.number_u32()?,
        drawn_to: match from.byte()? {
            0 => None,
            1 => Some(Position { epoch: from.number_u32()?, offset: from.number()? }),
            _ => return Err("a position in the data, or none"),
        },
        chance: None,
    })
}

fn decode_fate(from: &mut Decoder<'_>) -> Result<Fate, Expected> {
    Ok(match from.byte()? {
        0 => Fate::Accepted,
        1 => Fate::Filtered(interned_reason(from.text()?)),
        2 => Fate::Stale,
        3 => Fate::Cancelled,
        4 => Fate::Requeued,
        5 => Fate::Carried,
        6 => Fate::Held,
        7 => Fate::Failed(from.text()?.to_owned()),
        _ => return Err("a known fate"),
    })
}

fn decode_next(from: &mut Decoder<'_>) -> Result<Next, Expected> {
    Ok(match from.byte()? {
        0 => Next::Nothing,
        1 => Next::Again,
        2 => Next::Anew { first_attempt: from.number_u32()? },
        3 => Next::From(from.place()?),
        _ => return Err("a known way for a prompt to go on"),
    })
}
