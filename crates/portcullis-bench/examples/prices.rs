fn main() {
    let begun = std::time::Instant::now();
    let prices = portcullis_bench::prices(None, || ()).expect("prices");
    eprintln!("{:?} {} {:?}", begun.elapsed(), prices.core_hz, prices.undisturbed);
    for (key, value) in prices.cycles {
        println!("{key} {value:.2}");
    }
}
