//! Encodes the results of groups and the chances of prompts as bytes.

use rolldock_dispatch::PromptUid;
use rolldock_dispatch::history::{Chance, GradedGroup};

use super::{Decoder, Encoder, Expected, bias};

pub(super) fn encode(group: &GradedGroup, into: &mut Encoder) {
    into.0.extend_from_slice(&group.prompt_uid.0.to_le_bytes());
    into.number(u64::from(group.visit));
    into.number(group.number);
    bias::encode_group(&group.figures, into);
    into.byte(u8::from(group.is_valid));
}

pub(super) fn decode(from: &mut Decoder<'_>) -> Result<GradedGroup, Expected> {
    Ok(GradedGroup {
        prompt_uid: PromptUid(u64::from_le_bytes(from.eight()?)),
        visit: from.number_u32()?,
        number: from.number()?,
        figures: bias::decode_group(from)?,
        is_valid: match from.byte()? {
            0 => false,
            1 => true,
            _ => return Err("whether a group is valid"),
        },
    })
}

pub(super) fn encode_chance(chance: &Chance, into: &mut Encoder) {
    into.0.extend_from_slice(&chance.keep.to_le_bytes());
    into.0.extend_from_slice(&chance.valid.to_le_bytes());
}

pub(super) fn decode_chance(from: &mut Decoder<'_>) -> Result<Chance, Expected> {
    let mut share = |least: f32| {
        let mut four = [0; 4];
        four.copy_from_slice(from.bytes(4)?);
        let share = f32::from_le_bytes(four);
        (share >= least && share <= 1.0).then_some(share).ok_or("a probability")
    };
    Ok(Chance { keep: share(f32::MIN_POSITIVE)?, valid: share(0.0)? })
}
