//! Combines the results of many `pi` runs: `reduce FOLDER` reads `FOLDER/*/result.json` and
//! prints the estimate of pi with its standard error.

use std::{env, error::Error, fs};

fn number(text: &str, key: &str) -> Option<f64> {
    let (_, rest) = text.split_once(&format!("\"{key}\":"))?;
    rest.trim_start().split([',', '}']).next()?.trim().parse().ok()
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args().nth(1).ok_or("usage: reduce FOLDER")?;
    let mut estimates = Vec::new();
    let (mut hits, mut samples) = (0.0, 0.0);
    for entry in fs::read_dir(&folder)? {
        let Ok(text) = fs::read_to_string(entry?.path().join("result.json")) else { continue };
        let (Some(hit), Some(sample)) = (number(&text, "hits"), number(&text, "samples")) else {
            return Err(format!("not a result: {text}").into());
        };
        estimates.push(4.0 * hit / sample);
        hits += hit;
        samples += sample;
    }
    let count = estimates.len() as f64;
    if count < 2.0 {
        return Err(format!("{folder} holds {count} results; two are the least").into());
    }
    let mean = estimates.iter().sum::<f64>() / count;
    let variance = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (variance / count).sqrt();
    println!("pi = {:.6} +- {error:.6} from {count} runs with {samples} darts", 4.0 * hits / samples);
    Ok(())
}
