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
    into.probability(chance.keep);
    into.probability(chance.valid);
}

pub(super) fn decode_chance(from: &mut Decoder<'_>) -> Result<Chance, Expected> {
    Ok(Chance { keep: from.probability(f32::MIN_POSITIVE)?, valid: from.probability(0.0)? })
}
