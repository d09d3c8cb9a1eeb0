//! A page shows side by side only runs with the same batches, and rates in the same unit.

use super::html::{check, compared, pictures, times};
use super::{DISK, RECEIVE, bundled, float};
use portcullis_sim::number::thousands;
use serde_json::Value;

/// In each picture and in each table, all runs unmap in the same batches.
#[test]
fn no_picture_and_no_table_mixes_batches() {
    let designs = "none,solaris,identity,portcullis";
    let (page, document) = compared("batches.html", &[&bundled(RECEIVE), "--designs", designs]);
    check(&page, &document);
    let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows").clone()).concat();
    let cycles = |batch: u64, design: &str, protection: &str| {
        let wanted = |row: &&Value| row["batch"] == batch && row["design"] == design && row["protection"] == protection;
        float(all.iter().find(wanted).expect("a run"), "cycles_per_page")
    };
    let (_, numbers) = page.split_once("<h3>All numbers").expect("tables");
    let tables: Vec<&str> = numbers.split("<h4>").skip(1).collect();
    let titles =
        ["Each unmap by itself</h4>", "In batches of up to <data value=\"64\">64</data>, each with one wait</h4>"];
    for (batch, other, table, title) in [(1, 64, tables[0], titles[0]), (64, 1, tables[1], titles[1])] {
        let table = table.strip_prefix(title).and_then(|rest| rest.split("</table>").next()).expect(title);
        for (design, protection) in
            [("identity", "strict"), ("solaris", "deferred"), ("portcullis", "strict"), ("portcullis", "deferred")]
        {
            let cell = |batch| format!("<td><data value=\"{}\">", cycles(batch, design, protection));
            assert_eq!((times(table, &cell(batch)), times(table, &cell(other))), (1, 0), "{design} {protection}");
        }
        assert_eq!(times(table, "<th class=\"word\" scope=\"row\">none</th>"), usize::from(batch == 1));
        assert_eq!(times(table, "<td>none</td>"), 1, "the bound of `solaris`");
    }
    // The position of a dot shows its cost: on the same scale, the same name is further to the left if it is cheaper.
    let names = |picture: &str| ["identity", "solaris, no bound", "portcullis"].map(|name| times(picture, name));
    let [alone, together] = [0, 1].map(|index| pictures(&page)[index]);
    for form in [0, 1] {
        assert_eq!(names(alone[form]), names(together[form]));
        let discs = |picture: &str| -> Vec<i32> {
            let at = |disc: &str| disc.split('"').next().and_then(|at| at.parse().ok()).expect("a place");
            picture.split("<circle cx=\"").skip(1).map(at).collect()
        };
        let (alone, together) = (discs(alone[form]), discs(together[form]));
        assert_eq!((alone.len(), together.len()), (4, 4), "two, each with a rim");
        assert!(together.iter().max() < alone.iter().max(), "{together:?} are cheaper than {alone:?}");
    }
}

/// The tile shows the very run of which the advice speaks: the batch is a part of its name.
#[test]
fn what_is_best_is_best_in_its_batches() {
    let (page, document) = compared("best.html", &[&bundled(RECEIVE)]);
    let best = &document["best"][0]["strict"];
    let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows").clone()).concat();
    let same = |row: &&Value| {
        row["protection"] == "strict" && ["design", "options", "batch"].iter().all(|key| row[key] == best[key])
    };
    let run = all.iter().find(same).expect("it ran");
    assert_eq!(best["batch"], 64, "so that it can be told from the run without batches");
    let (tiles, rest) = page.split_once("<h3>").expect("more than tiles");
    let value = |key: &str| format!("<data value=\"{}\">", float(run, key));
    assert_eq!(times(tiles, &value("estimate_vs_none")), 1, "its share");
    assert_eq!(
        times(tiles, &value("estimate_gbps")),
        0,
        "a rate of anything between empty and full buffers says nothing"
    );
    assert!(tiles.contains("in batches of <data value=\"64\">64</data>"));
    assert_eq!(times(rest, "<tr class=\"best\">"), 2, "one of each protection");
}

#[test]
fn a_disk_has_requests() {
    let (page, document) = compared("disk.html", &[&bundled(DISK), "--designs", "none,stock"]);
    check(&page, &document);
    let stock = super::row(&document, "stock", "strict");
    let requests = float(stock, "estimate_operations_per_second");
    let cell = format!("<td><data value=\"{requests}\">{}</data></td><td>disk</td>", thousands(requests));
    assert!(page.contains(&cell), "{cell}");
    assert!(page.contains("taken for a disk’s traffic") && page.contains("kIO/s<br>(est.)"));
    assert_eq!(times(&page, "(est.)"), times(&page, "kIO/s<br>(est.)"), "and no other rate");
    assert!(times(page.split_once("<h3>").expect("tiles").0, "kIO/s, ") >= 2, "in the tiles as well");
}
