//! What a user may have meant by a name that does not exist.

/// How alike two names must be, from 0 to 1. It is what the parser of arguments asks for.
const ALIKE: f64 = 0.7;

/// `; did you mean …?` with the known name that is most like `name`, or nothing.
pub(crate) fn tip<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    let likeness = |known: &'k str| (strsim::jaro_winkler(name, known), known);
    let best = known.map(likeness).max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness > ALIKE)
        .map_or(String::new(), |(_, known)| format!("; did you mean `{known}`?"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_slip_is_understood_and_another_word_is_not() {
        let tip = |name| super::tip(name, ["magazine", "stock", "portcullis"].into_iter());
        assert_eq!(tip("magazin"), "; did you mean `magazine`?");
        assert_eq!(tip("portculis"), "; did you mean `portcullis`?");
        assert_eq!((tip("zebra"), tip("")), (String::new(), String::new()));
    }
}
