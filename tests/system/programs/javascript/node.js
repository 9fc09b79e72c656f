// The driver in Node: commands come as lines of standard input, what it says goes out as lines.
"use strict";

const readline = require("node:readline");
const mqtt = require("mqtt");
const { drive } = require("./driver.js");

const carryOut = drive(mqtt, (said) => process.stdout.write(JSON.stringify(said) + "\n"));
const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => carryOut(JSON.parse(line)));
lines.on("close", () => process.exit(0));
