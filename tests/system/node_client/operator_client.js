// operator_client.js SOCKET PROTO_ROOT SERVICE STANDBY PLAN: what an operator does, through Node's stock
// gRPC library and the .proto files, and nothing of Baton's own. STANDBY is the id of a ready worker that owns
// nothing, PLAN an UpgradePlan as JSON. Prints "ok" at the end, or throws.
'use strict';

const assert = require('assert');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [socket, protoRoot, service, standby, plan] = process.argv.slice(2);
const kPatienceMs = 60000;

const definition = loader.loadSync('proto/baton/v1/operator.proto', {
  includeDirs: [protoRoot], keepCase: true, longs: String, enums: String, defaults: true,
});
const baton = grpc.loadPackageDefinition(definition).baton.v1;
const client = new baton.OperatorService(`unix:${socket}`, grpc.credentials.createInsecure());

function call(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, {deadline: Date.now() + kPatienceMs},
      (error, response) => error ? reject(error) : resolve(response));
  });
}

async function until(what, look) {
  const deadline = Date.now() + kPatienceMs;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert(Date.now() < deadline, `waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const seen = new Set();
function follow() {
  const stream = client.WatchEvents({service, follow: true});
  stream.on('data', (response) => seen.add(response.event.kind));
  stream.on('error', (error) => {
    if (error.code !== grpc.status.CANCELLED) throw error;
  });
  return stream;
}

async function owners() {
  const {shards} = await call('GetService', {service});
  return new Set(shards.map((shard) => shard.owner_worker_id));
}

function over(id) {
  return until(`upgrade ${id} to be over`, async () => {
    const {upgrades} = await call('ListUpgrades', {service});
    const upgrade = upgrades.find((one) => one.id === id);
    return ['UPGRADE_PHASE_COMPLETED', 'UPGRADE_PHASE_ROLLED_BACK', 'UPGRADE_PHASE_FAILED']
      .includes(upgrade.phase) ? upgrade : null;
  });
}

async function main() {
  const events = follow();
  const {services, version} = await call('ListServices', {});
  assert.deepStrictEqual(services.map((one) => one.name), [service]);
  assert(services[0].reachable);
  assert.match(version.release, /^\d+\.\d+\.\d+$/);

  await assert.rejects(call('GetService', {service: 'nowhere'}),
    (error) => error.code === grpc.status.NOT_FOUND && error.details.includes(service));
  await assert.rejects(call('Handoff', {service, to_worker_id: '999999'}),
    (error) => error.code === grpc.status.NOT_FOUND || error.code === grpc.status.FAILED_PRECONDITION);

  const moved = await call('Handoff', {service, to_worker_id: standby});
  assert.strictEqual(moved.to_worker_id, standby);
  assert(moved.slowest_blackout_us > 0);
  assert.deepStrictEqual(await owners(), new Set([standby]));

  const {upgrade} = await call('Upgrade', {service, plan: JSON.parse(plan)});
  const done = await over(upgrade.id);
  assert.strictEqual(done.phase, 'UPGRADE_PHASE_COMPLETED', done.detail);
  for (const owner of await owners()) assert(done.new_worker_ids.includes(owner));

  const back = await call('Rollback', {service, watch_window_ms: 50});
  const undone = await over(back.upgrade.id);
  assert.strictEqual(undone.phase, 'UPGRADE_PHASE_COMPLETED', undone.detail);
  assert(undone.rollback);
  assert.strictEqual(undone.new_version, done.old_version);

  const expected = ['shard_moved', 'upgrade_started', 'upgrade_completed', 'worker_ready'];
  await until(`events of the kinds ${expected}`, () => expected.every((kind) => seen.has(kind)));
  events.cancel();
  client.close();
  console.log('ok');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
