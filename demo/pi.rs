//! Estimates pi by throwing darts at a square: `pi SEED SAMPLES` writes `result.json`.

use std::{env, error::Error, fs};

/// SplitMix64 (Steele, Lea and Flood, 2014): small, and independent streams from consecutive seeds.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [seed, samples] = arguments.as_slice() else {
        return Err("usage: pi SEED SAMPLES".into());
    };
    let (seed, samples): (u64, u64) = (seed.parse()?, samples.parse()?);
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let hits = (0..samples).filter(|_| random.unit().powi(2) + random.unit().powi(2) <= 1.0).count();
    let estimate = 4.0 * hits as f64 / samples as f64;
    println!("seed {seed}: {hits} of {samples} darts hit, pi is about {estimate:.6}");
    fs::write("result.json", format!("{{\"seed\": {seed}, \"samples\": {samples}, \"hits\": {hits}}}\n"))?;
    Ok(())
}
