// MQTT.js on a lead, the same in Node and in a browser: carries out one command of the test at a time for any number
// of clients, and says what happened. A command is {call, client, act, ...}; what is said is {call, failure} when it
// is done, and {client, message} or {client, farewell} when the broker has sent one.
"use strict";

function drive(mqtt, say) {
  const clients = new Map();

  const hex = (bytes) => Array.from(bytes ?? [], (byte) => byte.toString(16).padStart(2, "0")).join("");

  const hear = (client, topic, payload, packet) => {
    const { qos, retain, properties = {} } = packet;
    const { correlationData, ...told } = properties;
    say({ client, message: { topic, payload: hex(payload), qos, retain, correlation: hex(correlationData), told } });
  };

  const acts = {
    connect({ client, url, options }) {
      const made = mqtt.connect(url, options);
      clients.set(client, made);
      made.on("message", (topic, payload, packet) => hear(client, topic, payload, packet));
      made.on("disconnect", (packet) => say({ client, farewell: packet.reasonCode }));
      return new Promise((resolve, reject) => {
        made.once("connect", resolve);
        made.on("error", reject); // stays: an error that nobody listens to would end Node
        made.once("close", () => reject(new Error("closed")));
      });
    },

    async subscribe({ client, filter, options }) {
      const granted = await clients.get(client).subscribeAsync(filter, options);
      if (granted.some(({ qos }) => qos >= 0x80)) throw new Error(`refused: ${JSON.stringify(granted)}`);
    },

    publish({ client, topic, payloads, options }) {
      return Promise.all(payloads.map((payload) => clients.get(client).publishAsync(topic, payload, options)));
    },

    leave({ client }) {
      return clients.get(client).endAsync();
    },

    die({ client }) {
      return clients.get(client).endAsync(true); // forced: the stream is destroyed, and no DISCONNECT is sent
    },
  };

  return async (command) => {
    try {
      await acts[command.act](command);
      say({ call: command.call, failure: null });
    } catch (error) {
      say({ call: command.call, failure: String(error) });
    }
  };
}

if (typeof module !== "undefined") module.exports = { drive };
