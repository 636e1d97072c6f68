// Reads documents as a JSON list from standard input and holds each to its published CRD: node validate.mjs MODULES < documents.json
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const PACKAGES = {
  'gateway.networking.k8s.io': 'gateway-api',
  'monitoring.coreos.com': 'prometheus-operator',
  'keda.sh': 'keda',
};

let wrong = 0;
for (const document of JSON.parse(readFileSync(0, 'utf8'))) {
  const [group, version] = document.apiVersion.split('/');
  const file = join(process.argv[2], '@kubernetes-models', PACKAGES[group], group, version, `${document.kind}.js`);
  const model = await import(pathToFileURL(file));
  try {
    new model[document.kind](document).validate();
  } catch (error) {
    wrong += 1;
    console.log(`${document.kind}/${document.metadata.name}: ${error.message}`);
  }
}
process.exitCode = wrong ? 1 : 0;
