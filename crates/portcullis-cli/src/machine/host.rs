//! What Linux reports about this host. All of it can be read without root.

use std::fs;
use std::path::{Path, PathBuf};

/// A link of this host.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Link {
    /// The fastest link that is up, and its rate.
    Known { name: String, gbps: f64 },
    /// There are links, but none reports its speed: those of virtual machines do not.
    Unknown { name: String },
    /// There is no network interface with a device behind it.
    None,
}

fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The link in the folder `/sys/class/net`.
pub(super) fn link(folder: &Path) -> Link {
    // An interface without a device is software: a loopback, a bridge, a tunnel.
    let physical: Vec<String> =
        names(folder).into_iter().filter(|name| folder.join(name).join("device").exists()).collect();
    let speed = |name: &String| {
        let is_up = line(&folder.join(name).join("operstate")).is_some_and(|state| state == "up");
        // In Mb/s. It is -1 if the driver does not know the speed, and cannot be read if the interface has none.
        let mbps: f64 = line(&folder.join(name).join("speed")).filter(|_| is_up)?.parse().ok()?;
        (mbps > 0.0).then(|| Link::Known { name: name.clone(), gbps: mbps / 1000.0 })
    };
    let rate = |link: &Link| if let Link::Known { gbps, .. } = link { *gbps } else { 0.0 };
    let fastest = physical.iter().filter_map(speed).max_by(|one, other| rate(one).total_cmp(&rate(other)));
    fastest.or_else(|| physical.first().map(|name| Link::Unknown { name: name.clone() })).unwrap_or(Link::None)
}

/// The disks in the folder `/sys/block`.
pub(super) fn disks(folder: &Path) -> Vec<String> {
    let is_disk = |name: &String| {
        let of: PathBuf = folder.join(name);
        // NVMe disks with several paths have their block device among the virtual ones, without a link to a device.
        let has_device = name.starts_with("nvme") || of.join("device").exists();
        has_device && line(&of.join("removable")).is_none_or(|removable| removable != "1")
    };
    names(folder).into_iter().filter(is_disk).collect()
}

/// The name of the processor in `/proc/cpuinfo`.
pub(super) fn processor(cpuinfo: &Path) -> Option<String> {
    let text = fs::read_to_string(cpuinfo).ok()?;
    let named = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    };
    text.lines().find_map(named).filter(|name| !name.is_empty())
}

/// Whether this machine is virtual: then a hypervisor decides where its processors run.
pub(super) fn is_virtual(cpuinfo: &Path) -> bool {
    let has_flag = |line: &str| line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor");
    fs::read_to_string(cpuinfo).is_ok_and(|text| text.lines().any(has_flag))
}

/// The clock of CPU 0 in hertz, as the cpufreq driver reports it.
pub(super) fn clock_hz(cpufreq: &Path) -> Option<f64> {
    let khz = |file| line(&cpufreq.join(file))?.parse::<f64>().ok().filter(|khz| *khz > 0.0);
    khz("cpuinfo_max_freq").or_else(|| khz("scaling_cur_freq")).map(|khz| khz * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of files with these contents.
    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("portcullis-{name}-{}", std::process::id()));
        for (path, contents) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, contents).expect("written");
        }
        root
    }

    #[test]
    fn the_fastest_link_that_is_up_and_has_a_device() {
        let root = tree(
            "links",
            &[
                ("lo/operstate", "unknown\n"),
                ("bond0/operstate", "up\n"),
                ("bond0/speed", "200000\n"),
                ("eth0/device/vendor", "0x8086\n"),
                ("eth0/operstate", "up\n"),
                ("eth0/speed", "25000\n"),
                ("eth1/device/vendor", "0x8086\n"),
                ("eth1/operstate", "down\n"),
                ("eth1/speed", "100000\n"),
                ("eth2/device/vendor", "0x8086\n"),
                ("eth2/operstate", "up\n"),
                ("eth2/speed", "10000\n"),
            ],
        );
        assert_eq!(link(&root), Link::Known { name: "eth0".to_owned(), gbps: 25.0 });
        fs::write(root.join("eth0/speed"), "-1\n").expect("written");
        assert_eq!(link(&root), Link::Known { name: "eth2".to_owned(), gbps: 10.0 });
        fs::remove_file(root.join("eth2/speed")).expect("removed");
        assert_eq!(link(&root), Link::Unknown { name: "eth0".to_owned() });
        for name in ["eth0", "eth1", "eth2"] {
            fs::remove_dir_all(root.join(name)).expect("removed");
        }
        assert_eq!(link(&root), Link::None);
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn disks_with_a_device_that_stay() {
        let root = tree(
            "disks",
            &[
                ("loop0/removable", "0\n"),
                ("nvme0n1/removable", "0\n"),
                ("sda/device/model", "disk\n"),
                ("sda/removable", "0\n"),
                ("sr0/device/model", "tray\n"),
                ("sr0/removable", "1\n"),
            ],
        );
        assert_eq!(disks(&root), ["nvme0n1", "sda"]);
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn names_and_clocks_where_there_are_any() {
        let root = tree(
            "cpu",
            &[
                ("cpuinfo", "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu hypervisor\n"),
                ("scaling_cur_freq", "2100000\n"),
            ],
        );
        assert_eq!(processor(&root.join("cpuinfo")).as_deref(), Some("A CPU"));
        assert_eq!(clock_hz(&root), Some(2.1e9));
        assert!(is_virtual(&root.join("cpuinfo")) && !is_virtual(&root.join("none")));
        assert_eq!((processor(&root.join("none")), clock_hz(&root.join("none"))), (None, None));
        fs::remove_dir_all(&root).expect("removed");
    }
}
