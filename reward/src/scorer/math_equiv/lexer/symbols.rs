//! Maps the spellings of symbols and commands to the one spelling that tokens have.

use super::{ROW, SET_CLOSE, SET_OPEN};

/// Whether a command changes only the look of its argument.
pub(super) fn is_style(name: &str) -> bool {
    matches!(
        name,
        "displaystyle"
            | "textstyle"
            | "limits"
            | "nolimits"
            | "big"
            | "Big"
            | "bigl"
            | "bigr"
            | "Bigl"
            | "Bigr"
            | "bigg"
            | "Bigg"
            | "biggl"
            | "biggr"
            | "Biggl"
            | "Biggr"
            | "mathbf"
            | "mathit"
            | "mathsf"
            | "boldsymbol"
            | "bm"
            | "boxed"
            | "rm"
            | "bf"
    )
}

/// The symbol of a command.
pub(super) fn symbol_of(name: &str) -> Option<char> {
    Some(match name {
        "cdot" | "times" | "ast" => '*',
        "div" => '/',
        "le" | "leq" | "leqslant" => '≤',
        "ge" | "geq" | "geqslant" => '≥',
        "lt" => '<',
        "gt" => '>',
        "ne" | "neq" => '≠',
        "pm" => '±',
        "mp" => '∓',
        "cup" => '∪',
        "in" => '∈',
        "infty" => '∞',
        "pi" => 'π',
        "lbrace" => SET_OPEN,
        "rbrace" => SET_CLOSE,
        "lbrack" => '[',
        "rbrack" => ']',
        "langle" => '⟨',
        "rangle" => '⟩',
        "lvert" | "rvert" | "vert" => '|',
        "lfloor" => '⌊',
        "rfloor" => '⌋',
        "lceil" => '⌈',
        "rceil" => '⌉',
        "circ" | "degree" => '°',
        "prime" => '\'',
        "emptyset" | "varnothing" => '∅',
        "cr" => ROW,
        _ => return None,
    })
}

/// The symbol that replaces symbols of similar appearance.
pub(super) fn one_spelling(symbol: char) -> char {
    match symbol {
        '−' | '–' | '—' => '-',
        '×' | '·' | '⋅' | '∙' => '*',
        '÷' => '/',
        '⩽' => '≤',
        '⩾' => '≥',
        '′' | '’' => '\'',
        '，' => ',',
        other => other,
    }
}

/// The command of a Greek letter.
pub(super) fn greek(letter: char) -> Option<&'static str> {
    Some(match letter {
        'α' => "alpha",
        'β' => "beta",
        'γ' => "gamma",
        'δ' => "delta",
        'θ' => "theta",
        'λ' => "lambda",
        'μ' => "mu",
        'φ' => "phi",
        'ω' => "omega",
        _ => return None,
    })
}
