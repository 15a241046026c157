//! The prompts of a simulation without a recorded run: prompts from the recipe's data, or prompts of a given
//! length.

use std::sync::Arc;

use anyhow::Context;

use crate::data::{DataError, DataFields, Dataset, Prompt, PromptSource, PromptUid, TextCodec};
use crate::recipe::Recipe;
use crate::run::{codec_config, train_data};

/// The first token of the digits of a numbered prompt, and the token that fills the prompt up.
const DIGIT: u32 = 100;
const FILLER: u32 = 99;
/// Number of tokens that encode the number of a prompt.
const DIGITS: usize = 4;

/// The prompts of a simulation.
pub(super) enum Prompts {
    /// An endless series of prompts of equal length.
    Numbered {
        /// Their length in tokens.
        tokens: usize,
    },
    /// The recipe's data.
    Data {
        /// The rows.
        dataset: Dataset,
        /// The recipe's tokenizer.
        codec: Arc<TextCodec>,
    },
}

impl Prompts {
    /// Opens the recipe's data and tokenizer. Blocks.
    pub(super) fn open(recipe: &Recipe) -> anyhow::Result<Self> {
        let advice =
            "expected the data and the tokenizer of the recipe, or --prompt-tokens for prompts without data";
        // A template may write the date, which has the same number of tokens every day.
        let codec = TextCodec::open(&codec_config(&recipe.model, 0)).context(advice)?;
        let dataset = Dataset::open(train_data(&recipe.data)).context(advice)?;
        Ok(Self::Data { dataset, codec: Arc::new(codec) })
    }

    /// The prompts from the first one on.
    pub(super) fn source(&self) -> Box<dyn PromptSource> {
        match self {
            Self::Numbered { tokens } => Box::new(Numbered { next: 0, tokens: *tokens }),
            Self::Data { dataset, codec } => Box::new(dataset.cursor(Arc::clone(codec))),
        }
    }
}

/// An endless series of prompts. The first tokens of each prompt encode its number.
struct Numbered {
    next: u64,
    tokens: usize,
}

impl PromptSource for Numbered {
    fn next(&mut self) -> Result<Option<Prompt>, DataError> {
        self.next += 1;
        Ok(Some(numbered(self.next - 1, self.tokens)))
    }
}

/// The prompt of this number. It has `tokens` tokens, but at least `DIGITS` tokens, which encode the number.
pub(super) fn numbered(row: u64, tokens: usize) -> Prompt {
    let digits = (0..DIGITS).map(|place| DIGIT + (row >> (8 * place) & 0xff) as u32);
    Prompt {
        uid: PromptUid(row),
        row,
        visit: 0,
        ids: digits.chain((DIGITS..tokens).map(|_| FILLER)).collect(),
        text: "".into(),
        messages: [].into(),
        answer: "".into(),
        source: "".into(),
        difficulty: None,
        fields: DataFields::default(),
    }
}
