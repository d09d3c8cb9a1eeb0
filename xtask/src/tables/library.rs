//! What the library says of its designs.

use super::table;
use crate::house::files::File;
use portcullis::mapper::Info;
use portcullis_designs::DesignId;

fn infos() -> impl Iterator<Item = &'static Info> {
    DesignId::ALL.iter().map(|design| design.info())
}

pub(super) fn designs(_: &[File]) -> Result<String, String> {
    let row = |info: &Info| {
        let Info { id, source, allocator, invalidation, tables, batch_default, .. } = info;
        let protections: Vec<&str> = info.protections.iter().map(|protection| protection.name()).collect();
        let breaches: Vec<String> =
            info.breaches.iter().map(|one| format!("{}, {}: {}", one.rule, one.protection, one.bound)).collect();
        [
            format!("`{id}`"),
            (*source).to_owned(),
            (*allocator).to_owned(),
            (*invalidation).to_owned(),
            (*tables).to_owned(),
            batch_default.to_string(),
            protections.join(", "),
            if breaches.is_empty() { "nothing".to_owned() } else { breaches.join("; ") },
        ]
    };
    let head = "design | where from | address comes from | invalidation | table pages | batch | protections | gives up";
    Ok(table(head, infos().map(row)))
}

/// The parameters of the designs, one in a row.
pub(super) fn options(_: &[File]) -> Result<String, String> {
    let all = infos().flat_map(|info| info.options.iter().map(|option| (info.id, option)));
    let rows = all.map(|(design, option)| {
        let (kind, default, description) = (option.kind.to_string(), option.default.to_owned(), option.description);
        [format!("`{design}`"), format!("`{}`", option.key), kind, default, description.to_owned()]
    });
    Ok(table("design | parameter | is | unless given | what it does", rows))
}

#[cfg(test)]
mod tests {
    use super::{DesignId, designs, options};

    #[test]
    fn every_design_and_every_parameter_has_a_row() {
        let (designs, options) = (designs(&[]).expect("a table"), options(&[]).expect("a table"));
        assert_eq!(designs.lines().count(), 2 + DesignId::ALL.len());
        for info in DesignId::ALL.iter().map(|design| design.info()) {
            let row = format!("\n| `{}` | {} |", info.id, info.source.replace('|', "\\|"));
            assert!(designs.contains(&row), "{row}");
            for option in info.options {
                assert!(options.contains(&format!("\n| `{}` | `{}` |", info.id, option.key)), "{}", info.id);
            }
        }
        assert!(designs.contains(" | strict | nothing |\n") && designs.contains("S2, deferred: "), "{designs}");
    }
}
