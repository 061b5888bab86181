// A real OpenID provider for tests: node-oidc-provider with accounts and clients of the test's choice.
//
// It takes its settings as one JSON object on the command line and one JSON command a line on its input; each is answered
// by a line. It ends with its input.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

// Its notices to who runs it are not answers to the test.
console.info = console.error;

const settings = JSON.parse(process.argv[2]);
const require = createRequire(pathToFileURL(`${settings.modules}/`));
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const accounts = settings.accounts;
let generation = 0;
let handle = null;
let issuer = null;

function keys() {
  generation += 1;
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ format: 'jwk' });
  return {
    keys: [
      { ...rsa, kid: `rsa-${generation}`, use: 'sig', alg: 'RS256' },
      { ...ec, kid: `ec-${generation}`, use: 'sig', alg: 'ES256' },
    ],
  };
}

// What it issued before stays valid: its store belongs to the process, not to the instance.
function start() {
  const provider = new Provider(issuer, {
    clients: settings.clients,
    jwks: keys(),
    claims: {
      openid: ['sub'],
      email: ['email', 'email_verified'],
      profile: ['name', 'preferred_username'],
      groups: ['groups'],
    },
    // true: claims come from the userinfo endpoint, as the standard wants; false: in the ID token.
    conformIdTokenClaims: settings.thin,
    cookies: { keys: ['for tests only'] },
    findAccount: (_context, id) =>
      id in accounts ? { accountId: id, claims: () => ({ sub: id, ...accounts[id] }) } : undefined,
  });
  handle = provider.callback();
}

const server = createServer((request, response) => handle(request, response));
server.listen(0, '127.0.0.1', () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  start();
  console.log(JSON.stringify({ issuer }));
});

const commands = createInterface({ input: process.stdin });
commands.on('line', (line) => {
  const command = JSON.parse(line);
  if (command.rotate) start();
  Object.assign(accounts, command.accounts ?? {});
  console.log(JSON.stringify({ done: true, generation }));
});
commands.on('close', () => process.exit(0));
