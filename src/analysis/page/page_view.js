/* page_view.js - the user interface of the page: selection, pointer, keys, tables. */

const byId = id => document.getElementById(id);
const GROUPS = 11, ROWS = 100, DEVICES = 32;

const capture = readCapture(decodeBase64(byId('data').textContent.trim()));
byId('data').remove();
const models = capture.devices.map(() => null);

const state = {
	device: 0, by: null, chosenBy: null, /* grouping chosen by the user */ t0: 0, t1: Math.max(1, capture.end), moment: NOTHING, follows: true, /* the selected moment is the peak */
	search: '', matches: null, tab: 'alive', sorts: {}, rows: ROWS, drawMs: 0, draws: 0,
};
let model, chart, mapPlace, map, trafficPlace;
const overview = {}, opSpans = {};

/* ---- helpers ---- */

/* Creates an element with properties and children; strings are always text, never markup. */
function make(tag, properties = {}, ...children) {
	const element = document.createElement(tag);
	for (const [key, value] of Object.entries(properties)) {
		if (key in element && key !== 'style' && key !== 'role') element[key] = value;
		else element.setAttribute(key, value);
	}
	element.append(...children.filter(child => child !== null));
	return element;
}

function swatch(colour) {
	const element = make('span', { className: 'swatch' });
	element.style.background = colour;
	return element;
}

const siteOf = id => capture.sites[capture.site[id]];
const titleOf = site => site.op || site.tag || site.scope || site.stack[0] || '(no name)';
const stepSums = step => step.devices[state.device] || NO_STEP_SUMS;
const stepAt = time => capture.steps.find(step => step.begin <= time && time < step.begin + step.length);

const FRAMES_SHOWN = 12; /* of a call stack, innermost first */

function describe(id) {
	const site = siteOf(id), end = capture.finish[id], begin = capture.begin[id];
	const rows = [['size', formatBytes(capture.bytes[id]) + (capture.slack[id] ? ', ' + formatBytes(capture.slack[id]) + ' of it slack' : '')]];
	if (site.rest) return { title: 'Many brief or small allocations', rows };
	if (site.shape || site.dtype !== '?') rows.push(['tensor', [site.dtype === '?' ? '' : site.dtype, site.shape].join(' ').trim()]);
	if (site.scope) rows.push(['scope', site.scope]);
	if (site.tag) rows.push(['tag', site.tag]);
	rows.push(['lifetime', isFinite(end) ? formatTime(end - begin) : formatTime(capture.end - begin) + ', live at the end']);
	rows.push(['from', formatTime(begin) + (isFinite(end) ? ' to ' + formatTime(end) : '')]);
	const step = stepAt(begin);
	if (step) rows.push(['step', formatCount(step.number)]);
	rows.push(['address', '0x' + capture.address[id].toString(16)]);
	site.stack.slice(0, FRAMES_SHOWN).forEach((frame, i) => rows.push([i ? '' : 'calls', frame]));
	if (site.stack.length > FRAMES_SHOWN) rows.push(['', `and ${formatCount(site.stack.length - FRAMES_SHOWN)} more`]);
	return { title: titleOf(site), rows };
}

function showTip(event, { title, rows }) {
	const tip = byId('tip'), list = make('dl');
	for (const [name, value] of rows) list.append(make('dt', {}, name), make('dd', {}, value));
	tip.replaceChildren(make('b', {}, title), list);
	tip.hidden = false;
	const { width, height } = tip.getBoundingClientRect();
	tip.style.left = Math.max(4, event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16) + 'px';
	tip.style.top = Math.max(4, Math.min(innerHeight - height - 4, event.clientY + 14)) + 'px';
}

function hideTip() { byId('tip').hidden = true; glow(NOTHING); }

/* Shows the tip for what is under the pointer. Kept because the drawing can change without a pointer move, for example by keys. */
let hovered = null;

function hover(show, event) {
	hovered = () => show(event);
	hovered();
}

function leave() {
	hovered = null;
	hideTip();
	byId('mark-hover').style.display = 'none';
}

let glowing = NOTHING;

function glow(id) {
	if (id === glowing) return;
	glowing = id;
	drawGlow(byId('glow'), model, chart, id);
}

function plural(count, what) { return formatCount(count) + ' ' + what + (count === 1 ? '' : 's'); }

function say(text) { byId('said').textContent = text; }

/* ---- drawing ---- */

let wanted = { chart: false, moment: false };

function draw(what = 'chart') {
	if (!wanted.chart && !wanted.moment) requestAnimationFrame(drawNow);
	wanted[what] = true;
}

function drawNow() {
	const { chart: all, moment } = wanted, start = performance.now();
	wanted = { chart: false, moment: false };
	if (all) {
		const view = { t0: state.t0, t1: state.t1, matches: state.matches, matchText: state.search };
		chart = drawChart(byId('chart'), model, view);
		glow(NOTHING);
		drawAxes(byId('axis-y'), byId('axis-x'), view, chart);
		drawOverview(byId('overview'), model, view, overview);
		if (capture.steps.length) drawSteps(byId('steps'), model, view);
		if (capture.ops.count) drawOps(byId('ops'), model, view, opSpans);
		if (hasTraffic()) {
			trafficPlace = drawTraffic(byId('traffic'), model, view);
			byId('traffic-scale').textContent = trafficPlace.most > 1 ? formatBytes(trafficPlace.most / trafficPlace.unit * 1e9) + '/s' : '';
		}
		byId('chart').setAttribute('aria-label', `Memory in use on ${model.device.name} from ${formatTime(state.t0)} to ${formatTime(state.t1)}, at most ${formatBytes(model.inUse(highestInView()))}`);
		state.drawMs = performance.now() - start;
		state.draws++;
	}
	if (moment) drawMoment();
	placeMarks();
	if (hovered) hovered();
}

function hasTraffic() { const moves = capture.moves[state.device]; return moves && moves.out.count + moves.in.count + moves.dropped.count + moves.again.count > 0; }

function highestInView() {
	const from = lowerBound(model.times, state.t0), best = model.highest(from, lowerBound(model.times, state.t1, from));
	return best === NOTHING || (from > 0 && model.inUse(from - 1) > model.inUse(best)) ? from - 1 : best;
}

function placeMark(mark, time) {
	const part = (time - state.t0) / (state.t1 - state.t0), width = byId('marks').clientWidth;
	mark.style.display = part >= 0 && part <= 1 ? 'block' : 'none';
	mark.style.left = part * width + 'px';
	mark.classList.toggle('left', part * width > width - 110);
}

function placeMarks() {
	placeMark(byId('mark-peak'), model.peakChange < 0 ? -1 : model.times[model.peakChange]);
	placeMark(byId('mark-moment'), state.follows || state.moment < 0 ? -1 : model.times[state.moment]);
}

/* Draws the selected moment: live bytes by group, and the map of addresses. */
function drawMoment() {
	const change = state.moment, sums = new Float64Array(model.groups.length), used = model.inUse(change), live = model.live(change);
	model.groupSums(change, sums, 0);
	const counts = new Int32Array(model.groups.length);
	for (const id of live) counts[model.groupOf[capture.site[id]]]++;
	const time = change < 0 ? 0 : model.times[change], step = stepAt(time);
	byId('moment-title').textContent = state.follows ? 'At the peak' : 'At ' + formatTime(time);
	byId('moment-peak').hidden = state.follows;
	byId('moment-lead').replaceChildren(make('b', { id: 'moment-bytes' }, formatBytes(used)), ` in ${formatCount(live.length)} allocations, ${formatTime(time)} from the start` + (step ? `, step ${formatCount(step.number)}` : ''));
	const order = Array.from(sums.keys()).filter(g => sums[g] > 0).sort((a, b) => sums[b] - sums[a]);
	const whole = make('div', { className: 'whole', role: 'img', 'aria-label': order.map(g => model.groups[g].name + ' ' + formatPart(sums[g] / used)).join(', ') });
	const body = make('tbody');
	for (const g of order) {
		const part = make('i');
		part.style.background = groupColour(model, g);
		part.style.flex = sums[g] / used;
		whole.append(part);
		const row = make('tr', {}, make('td', { title: model.groups[g].name }, swatch(groupColour(model, g)), model.groups[g].name), make('td', {}, formatBytes(sums[g])),
			make('td', {}, formatPart(sums[g] / used)), make('td', {}, formatCount(counts[g]) + '\u00d7'));
		row.dataset.bytes = sums[g];
		row.dataset.name = model.groups[g].name;
		body.append(row);
	}
	byId('breakdown').replaceChildren(whole, make('table', { className: 'parts', 'aria-label': 'What was in use, by ' + state.by }, body));
	byId('breakdown').dataset.bytes = used;
	drawRegionMap(change, time);
	if (state.tab === 'alive') drawTable();
}

function drawRegionMap(change, time) {
	map = model.map(change);
	mapPlace = drawMap(byId('map'), model, map, state.matches);
	byId('map-when').textContent = state.follows ? 'at the peak' : 'at ' + formatTime(time);
	const apart = map.free - map.largest, [loss, ofHeld] = [map.free, map.heldBytes].map(whole => whole ? apart / whole : 0);
	byId('map-lead').replaceChildren(make('b', {}, formatBytes(map.heldBytes)), ` held in ${formatCount(map.held.length)} ${map.held.length === 1 ? 'piece' : 'pieces'}, `,
		make('b', {}, formatBytes(map.free)), ' free, ', make('b', {}, formatBytes(map.largest)), ' of it in the largest hole. Fragmentation ', make('b', { id: 'fragmentation' }, formatPart(loss)), ` of what is free: ${formatBytes(apart)} are in other holes, ${formatPart(ofHeld)} of what is held.`);
	byId('map').setAttribute('aria-label', `Map of ${formatBytes(map.heldBytes)}: ${formatBytes(map.used)} in use, ${formatBytes(map.free)} free, largest hole ${formatBytes(map.largest)}`);
	Object.assign(byId('map').dataset, { held: map.heldBytes, used: map.used, free: map.free, largest: map.largest });
	const missing = capture.regions.length < capture.regionCount;
	byId('map-note').textContent = map.guessed ? `${missing ? 'What the allocator held then is not in this page' : 'The trace does not say what the allocator held'}; this is what its blocks span.`
		: missing && !state.follows ? 'Small and brief regions are left out of this page, so there may have been more.' : '';
}

/* ---- selection ---- */

function setView(t0, t1) {
	const end = Math.max(1, capture.end), span = Math.min(end, Math.max(20, t1 - t0));
	state.t0 = Math.max(0, Math.min(end - span, t0));
	state.t1 = state.t0 + span;
	draw();
}

function zoom(factor, part = 0.5) {
	const span = state.t1 - state.t0, at = state.t0 + part * span;
	setView(at - part * span * factor, at + (1 - part) * span * factor);
}

function pan(part) { const by = part * (state.t1 - state.t0); setView(state.t0 + by, state.t1 + by); }

function setMoment(change) {
	state.follows = change === NOTHING || change === model.peakChange;
	state.moment = state.follows ? model.peakChange : Math.max(-1, Math.min(model.count - 1, change));
	draw('moment');
}

/* Brings a time into view, centred if it was not visible. */
function reveal(time) {
	const span = state.t1 - state.t0;
	if (time < state.t0 || time > state.t1) setView(time - span / 2, time + span / 2);
}

function showPeak() {
	if (model.peakChange < 0) return;
	const time = model.times[model.peakChange], span = Math.max(50, Math.min(state.t1 - state.t0, capture.end / 20));
	setView(time - span / 2, time + span / 2);
	setMoment(NOTHING);
	say(`Peak: ${formatBytes(model.peak)} at ${formatTime(time)}`);
}

function goStep(direction) {
	const middle = (state.t0 + state.t1) / 2, { steps } = capture;
	if (!steps.length) return;
	let at = steps.findIndex(step => step.begin + step.length > middle);
	if (at < 0) at = steps.length - 1;
	const inView = Math.abs(steps[at].begin - state.t0) < 1 && Math.abs(steps[at].begin + steps[at].length - state.t1) < 21;
	const step = steps[Math.max(0, Math.min(steps.length - 1, inView ? at + direction : at))];
	setView(step.begin, step.begin + step.length);
	say(`Step ${step.number}: peak ${formatBytes(stepSums(step).peak)}`);
}

function goChange(direction) {
	setMoment(Math.max(0, Math.min(model.count - 1, state.moment + direction)));
	if (state.moment < 0) return;
	reveal(model.times[state.moment]);
	const id = model.subjects[state.moment], frees = model.first[id] !== state.moment;
	say(`${frees ? 'free' : 'allocation'} of ${formatBytes(capture.bytes[id])}, ${titleOf(siteOf(id))}; in use ${formatBytes(model.inUse(state.moment))}`);
}

function setDevice(index) {
	state.device = index;
	model = models[index] = models[index] || new DeviceModel(capture, index);
	const first = model.firstGrouping();
	setGroup(!state.chosenBy || (state.chosenBy === 'size' && first !== 'size') ? first : state.chosenBy); /* only devices without names can be grouped by size */
	for (const button of byId('devices').children) {
		const chosen = Number(button.dataset.device) === index;
		button.setAttribute('aria-checked', chosen);
		button.tabIndex = chosen ? 0 : -1;
	}
	byId('lane-traffic').hidden = !hasTraffic();
	byId('mark-peak').firstChild.textContent = 'peak ' + formatBytes(model.peak);
	setMoment(NOTHING);
	setSearch(state.search);
	fillTiles();
	drawTable();
	draw();
}

function nextDevice() {
	const all = [...byId('devices').children].map(button => Number(button.dataset.device));
	if (all.length) setDevice(all[(all.indexOf(state.device) + 1) % all.length]);
}

/* By op and scope: the group in which it allocates the most bytes. */
function mostByOp() {
	const sums = new Map(), most = new Map();
	capture.sites.forEach((site, i) => {
		if (site.device !== state.device || site.rest || !site.count) return;
		const op = site.op + '\n' + site.scope, group = model.groupOf[i], key = group + '\n' + op, bytes = (sums.get(key) || 0) + site.bytes;
		sums.set(key, bytes);
		if (!most.has(op) || bytes > most.get(op).bytes) most.set(op, { group, bytes });
	});
	return most;
}

function setGroup(by) {
	state.by = byId('group').value = by;
	model.group(by, GROUPS);
	const places = new Map(model.groups.map((group, i) => [group.name, i])), mostOf = by === 'tag' ? mostByOp() : null;
	opSpans.groupOf = (name, scope) => {
		if (mostOf) { const most = mostOf.get(capture.strings[name] + '\n' + capture.strings[scope]); return most ? most.group : NOTHING; }
		const key = by === 'scope' ? model.scopeKey(capture.strings[scope]) : capture.strings[name];
		return places.has(key) ? places.get(key) : NOTHING;
	};
	byId('legend').replaceChildren(...model.groups.map((group, i) => {
		const mark = make('span');
		mark.style.background = groupColour(model, i);
		const button = make('button', { type: 'button', title: group.others ? `${group.others} others` : group.name }, mark, make('em', {}, group.others ? `${group.others} others` : group.name));
		if (group.others) button.disabled = true;
		else button.addEventListener('click', () => { byId('search').value = state.search === group.name ? '' : group.name; setSearch(byId('search').value); });
		return make('li', {}, button);
	}));
	draw();
	draw('moment');
}

/* A site matches if every word of [text] occurs in its op, scope, tag, shape, dtype or call stack. */
function setSearch(text) {
	state.search = text;
	const words = text.toLowerCase().split(/\s+/).filter(Boolean);
	state.test = haystack => words.every(word => haystack.includes(word));
	state.matches = words.length ? Uint8Array.from(capture.sites, site => state.test(site.words || (site.words = [site.op, site.scope, site.tag, site.shape, site.dtype, ...site.stack].join(' ').toLowerCase())) ? 1 : 0) : null;
	if (state.matches) {
		let count = 0, bytes = 0, atPeak = 0;
		capture.sites.forEach((site, i) => { if (state.matches[i] && site.device === state.device) count += site.count, bytes += site.bytes; });
		for (const id of model.live(model.peakChange)) if (state.matches[capture.site[id]]) atPeak += capture.bytes[id];
		byId('found').textContent = count ? `${formatCount(count)} allocations, ${formatBytes(bytes)}; ${formatBytes(atPeak)} at the peak` : 'nothing found';
		Object.assign(byId('found').dataset, { count, bytes, atPeak });
	} else {
		byId('found').textContent = '';
	}
	state.rows = ROWS;
	drawTable();
	draw();
	draw('moment');
}

/* ---- summary ---- */

/* Tiles for allocator limits that did not apply at the peak, one tile per distinct limit. */
function limitTiles(shown, tile) {
	const names = new Map(), whole = capture.devices[state.device].limit || Infinity;
	for (const { device, limit, name, begin, end } of capture.allocators) {
		if (device !== state.device || !limit || limit === shown || limit >= whole || !(begin || end)) continue;
		names.set(limit, (names.get(limit) || []).concat(name));
	}
	return [...names].sort((a, b) => a[0] - b[0]).slice(0, 2).map(([limit, of]) => tile('Limit', formatBytes(limit), 'of ' + of.map((name) => '"' + name + '"').join(' and ')));
}

function fillTiles() {
	const { device } = model, limit = model.limitAt(device.peakTime), step = stepAt(device.peakTime), moves = capture.moves[state.device];
	const tile = (name, value, more, first) => make('div', { className: first ? 'first' : '' }, make('dt', {}, name), make('dd', { title: more || '' }, value, more ? make('small', {}, more) : null));
	const count = capture.sites.reduce((sum, site) => sum + (site.device === state.device ? site.count : 0), 0);
	const tiles = [
		tile('Peak', formatBytes(device.peak), 'at ' + formatTime(device.peakTime) + (step ? ', step ' + formatCount(step.number) : ''), true),
		limit ? tile(limit < device.limit || !device.limit ? 'Limit' : 'Device memory', formatBytes(limit), formatPart(device.peak / limit) + ' at the peak') : null,
		...limitTiles(limit, tile),
		tile('At the end', formatBytes(device.endBytes)),
		tile('Allocations', formatCount(count)),
		tile('Duration', formatTime(capture.end), capture.stepCount ? plural(capture.stepCount, 'step') : ''),
		hasTraffic() ? tile('LMS moved', formatBytes(moves.out.bytes), 'out, ' + formatBytes(moves.in.bytes) + ' in') : null,
		capture.refusalCount ? tile('Refused', formatCount(capture.refusalCount), capture.refusalCount === 1 ? 'request' : 'requests') : null,
	];
	byId('tiles').replaceChildren(...tiles.filter(Boolean));
	byId('tiles').dataset.peak = device.peak;
}

function fillNotes() {
	const notes = [];
	if (!capture.complete) notes.push('The recording was not closed; events up to its end are shown.');
	if (capture.limited) notes.push('The recording ended when its file reached its size limit; later events are missing.');
	if (capture.lost) notes.push(`${plural(capture.lost, 'event')} could not be written while recording.`);
	if (capture.skipped) notes.push(`${plural(capture.skipped, 'event')} made no sense and ${capture.skipped === 1 ? 'is' : 'are'} left out.`);
	if (capture.otherNames) notes.push(`There are more names than are kept apart; those of ${formatCount(capture.otherNames)} allocations and ops are shown as (other).`);
	const kept = capture.sites.length && capture.begin.length < capture.allocationCount;
	if (kept) notes.push(`Of ${formatCount(capture.allocationCount)} allocations, the smallest and briefest are summed up. Peaks and sums are exact.`);
	const some = (shown, all, what) => { if (shown < all) notes.push(`${formatCount(shown)} of ${formatCount(all)} ${what}`); };
	some(capture.ops.count, capture.opCount, 'ops are drawn: the longest. Sums are over all of them.');
	some(capture.steps.length, capture.stepCount, 'steps are shown, from all over the time, with those of the peaks.');
	some(capture.refusals.length, capture.refusalCount, 'refused requests are drawn, from all over the time.');
	some(capture.regions.length, capture.regionCount, 'regions are in the map: the large and long ones, and all that were there at a peak.');
	some(capture.pauses.length, capture.pauseCount, 'pauses for plans of Large Model Support are drawn: the longest.');
	const moves = capture.moves[state.device];
	if (moves && moves.dropped.count) notes.push(`${plural(moves.dropped.count, 'tensor')} dropped instead of moved to the host, and ${formatCount(moves.again.count)} recomputed.`);
	if (capture.moveRecords < capture.moveCount) notes.push(`${formatCount(capture.moveCount)} moves are added up in short stretches of time. Sums are exact.`);
	some(byId('devices').children.length, capture.devices.filter(device => device.peak).length, 'devices that were used can be chosen: the first.');
	if (capture.steps.length) some(capture.devicesInSteps, capture.devices.length, 'devices have sums for steps: the first.');
	byId('notes').replaceChildren(...notes.map(text => make('p', {}, text)));
	const when = capture.wallMs ? new Date(capture.wallMs).toISOString().replace('T', ' ').slice(0, 19) + ' UTC' : '';
	document.title = decodeURIComponent(location.pathname.split('/').pop()) + ' - Headroom';
	byId('subtitle').textContent = ['memory profile', when, formatCount(capture.allocationCount + capture.freeCount) + ' allocations and frees', capture.opCount ? formatCount(capture.opCount) + ' ops' : ''].filter(Boolean).join('  \u00b7  ');
}

/* ---- tables ---- */

const number = (key, label, format) => ({ key, label, format, number: true });
const text = (key, label) => ({ key, label, format: value => value });

function tensorRow(id) {
	const site = siteOf(id), end = isFinite(capture.finish[id]) ? capture.finish[id] : capture.end;
	return { id, op: titleOf(site), scope: site.scope, tensor: [site.dtype === '?' ? '' : site.dtype, site.shape].join(' ').trim(), tag: site.tag, bytes: capture.bytes[id], slack: capture.slack[id],
		begin: capture.begin[id], lifetime: end - capture.begin[id], kept: isFinite(capture.finish[id]) ? 0 : 1, site: capture.site[id] };
}

const TENSOR_COLUMNS = [text('op', 'Op'), text('scope', 'Scope'), text('tensor', 'Tensor'), text('tag', 'Tag'), number('bytes', 'Size', formatBytes), number('slack', 'Slack', formatBytes),
	number('begin', 'Allocated at', formatTime), number('lifetime', 'Lifetime', formatTime)];

const TABLES = {
	alive: { label: 'Live then', columns: TENSOR_COLUMNS, first: 'bytes',
		rows: () => model.live(state.moment).filter(matchesId).map(tensorRow) },
	tensors: { label: 'Tensors', columns: TENSOR_COLUMNS, first: 'bytes', lazy: true },
	ops: { label: 'Ops', first: 'bytes', rows: opRows,
		columns: [text('op', 'Op'), number('runs', 'Runs', formatCount), number('ns', 'Time', formatTime), number('count', 'Allocations', formatCount), number('bytes', 'Allocated', formatBytes),
			number('largest', 'Largest', formatBytes), number('atPeak', 'At the peak', formatBytes), number('left', 'Live at the end', formatBytes)] },
	scopes: { label: 'Scopes', first: 'bytes', rows: scopeRows,
		columns: [text('scope', 'Scope'), number('count', 'Allocations', formatCount), number('bytes', 'Allocated', formatBytes), number('largest', 'Largest', formatBytes),
			number('atPeak', 'At the peak', formatBytes), number('left', 'Live at the end', formatBytes)] },
	steps: { label: 'Steps', first: 'number', ascending: true, rows: stepRows,
		columns: [number('number', 'Step', formatCount), number('begin', 'Begin', formatTime), number('length', 'Duration', formatTime), number('peak', 'Peak', formatBytes),
			number('allocations', 'Allocations', formatCount), number('bytes', 'Allocated', formatBytes), number('left', 'Left behind', formatBytes)] },
};

const matchesId = id => !state.matches || state.matches[capture.site[id]] === 1;

/* Sums of sites by a key, including bytes live at the peak. */
function sumSites(keyOf) {
	const rows = new Map();
	const row = key => rows.get(key) || rows.set(key, { key, count: 0, bytes: 0, largest: 0, atPeak: 0, left: 0 }).get(key);
	capture.sites.forEach((site, i) => {
		if (site.device !== state.device || site.rest || !site.count || (state.matches && !state.matches[i])) return;
		const sum = row(keyOf(site));
		sum.count += site.count;
		sum.bytes += site.bytes;
		sum.left += site.liveBytes;
		sum.largest = Math.max(sum.largest, site.largest);
	});
	for (const id of model.live(model.peakChange)) if (matchesId(id)) row(keyOf(siteOf(id))).atPeak += capture.bytes[id];
	return rows;
}

function opRows() {
	const rows = sumSites(site => site.op || '(no op)');
	for (const row of rows.values()) Object.assign(row, { op: row.key, runs: 0, ns: 0 });
	for (const total of capture.opTotals) {
		const key = total.op || '(no op)';
		if (!rows.has(key)) {
			if (state.matches && !state.test(key.toLowerCase())) continue;
			rows.set(key, { op: key, count: 0, bytes: 0, largest: 0, atPeak: 0, left: 0 });
		}
		Object.assign(rows.get(key), { runs: total.runs, ns: total.ns });
	}
	return [...rows.values()];
}

function scopeRows() { return [...sumSites(site => site.scope || '(no scope)').values()].map(row => ({ ...row, scope: row.key })); }

function stepRows() {
	return capture.steps.map(step => ({ number: step.number, begin: step.begin, length: step.length, step, ...stepSums(step) }));
}

/* There may be a million tensors, so only the first ones in sort order become rows. */
function tensorRows(key, direction) {
	const value = { bytes: id => capture.bytes[id], slack: id => capture.slack[id], begin: id => capture.begin[id], lifetime: id => (isFinite(capture.finish[id]) ? capture.finish[id] : capture.end) - capture.begin[id] }[key];
	let ids = model.ids;
	if (state.matches) ids = ids.filter(matchesId);
	state.rowCount = ids.length;
	if (value) {
		const keys = new Float64Array(ids.length);
		for (let i = 0; i < ids.length; i++) keys[i] = direction * value(ids[i]);
		if (ids.length > 4 * state.rows) {
			const bound = keys.slice().sort()[state.rows];
			ids = ids.filter((_, i) => keys[i] <= bound).slice(0, 50000);
		}
	} else {
		/* Text columns: sort the sites, then take the first tensors in that order. */
		const rank = new Map();
		capture.sites.map((site, i) => [i, String({ op: titleOf(site), tensor: site.dtype + ' ' + site.shape }[key] || site[key] || '')])
			.sort((a, b) => direction * a[1].localeCompare(b[1])).forEach(([i], place) => rank.set(i, place));
		ids = Array.from(ids).sort((a, b) => rank.get(capture.site[a]) - rank.get(capture.site[b]) || a - b).slice(0, state.rows + 1);
	}
	return Array.from(ids, tensorRow);
}

function compare(column, direction) {
	return column.number ? (a, b) => direction * (a[column.key] - b[column.key]) : (a, b) => direction * String(a[column.key]).localeCompare(String(b[column.key]));
}

function drawTable() {
	const table = TABLES[state.tab], sort = state.sorts[state.tab] || (state.sorts[state.tab] = { key: table.first, direction: table.ascending ? 1 : -1 });
	const column = table.columns.find(one => one.key === sort.key);
	const rows = table.lazy ? tensorRows(sort.key, sort.direction) : table.rows();
	const count = table.lazy ? state.rowCount : rows.length;
	rows.sort(compare(column, sort.direction));
	const head = make('tr', {}, ...table.columns.map(one => {
		const button = make('button', { type: 'button' }, one.label), cell = make('th', { scope: 'col', className: one.number ? 'number' : '' }, button);
		if (one === column) cell.setAttribute('aria-sort', sort.direction > 0 ? 'ascending' : 'descending');
		button.addEventListener('click', () => {
			state.sorts[state.tab] = { key: one.key, direction: one === column ? -sort.direction : one.number ? -1 : 1 };
			drawTable();
			byId('table').querySelectorAll('th button')[table.columns.indexOf(one)].focus();
		});
		return cell;
	}));
	const body = make('tbody', {}, ...rows.slice(0, state.rows).map(row => make('tr', {}, ...table.columns.map((one, i) => {
		const cell = make('td', { className: one.number ? 'number' : '' });
		const shown = one.format(row[one.key]);
		if (i === 0) cell.append(make('button', { type: 'button', title: String(shown), onclick: () => goRow(row) }, shown || '\u2013'));
		else cell.append(shown);
		if (one.number) cell.dataset.value = row[one.key];
		else cell.title = shown;
		return cell;
	}))));
	const parts = [make('table', {}, make('thead', {}, head), body)];
	if (!rows.length) parts.push(make('p', { className: 'empty' }, 'Nothing here.'));
	if (count > state.rows) parts.push(make('button', { type: 'button', className: 'more', onclick: () => { state.rows += 4 * ROWS; drawTable(); } }, `Show more of ${formatCount(count)}`));
	byId('table').replaceChildren(...parts);
	byId('table-count').textContent = formatCount(count) + (count === 1 ? ' row' : ' rows');
}

/* Shows the item of a row: the lifetime of a tensor, a step, or a search for an op or scope. */
function goRow(row) {
	if (row.id !== undefined) {
		const margin = Math.max(20, row.lifetime * 0.15);
		setView(row.begin - margin, row.begin + row.lifetime + margin);
		setMoment(model.first[row.id]);
	} else if (row.step) {
		setView(row.begin, row.begin + row.length);
	} else {
		byId('search').value = row.op || row.scope;
		setSearch(byId('search').value);
	}
	byId('lanes').scrollIntoView({ block: 'nearest' });
}

function setTab(name) {
	state.tab = name;
	state.rows = ROWS;
	for (const tab of byId('tabs').children) {
		const chosen = tab.dataset.tab === name;
		tab.setAttribute('aria-selected', chosen);
		tab.tabIndex = chosen ? 0 : -1;
		if (chosen) byId('table').setAttribute('aria-labelledby', tab.id);
	}
	drawTable();
}

/* ---- pointer ---- */

function partOf(event, element) {
	const box = element.getBoundingClientRect();
	return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
}

const timeOf = (event, element) => state.t0 + partOf(event, element) * (state.t1 - state.t0);

function hoverChart(event) {
	const box = byId('chart').getBoundingClientRect();
	const c = Math.min(chart.w - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * chart.w))), y = Math.min(chart.h - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * chart.h)));
	const owner = chart.owner[y * chart.w + c], change = chart.moments[c];
	placeMark(byId('mark-hover'), timeOf(event, byId('chart')));
	glow(owner);
	if (owner >= 0) return showTip(event, describe(owner));
	const rows = [['in use', formatBytes(model.inUse(change))], ['time', formatTime(timeOf(event, byId('chart')))]];
	if (owner === NOTHING) return showTip(event, { title: 'All of ' + model.device.name, rows });
	const group = -2 - owner, sums = new Float64Array(model.groups.length);
	model.groupSums(change, sums, 0);
	rows.unshift(['together', formatBytes(sums[group])]);
	return showTip(event, { title: model.groups[group].name + ', small ones', rows });
}

function hoverTraffic(event) {
	const bar = Math.min(trafficPlace.bars - 1, Math.floor(partOf(event, byId('traffic')) * trafficPlace.bars)), from = state.t0 + bar * trafficPlace.unit, to = from + trafficPlace.unit;
	const [out, back, dropped, again] = ['out', 'in', 'dropped', 'again'].map(kind => movesBetween(capture.moves[state.device][kind], from, to));
	placeMark(byId('mark-hover'), from);
	showTip(event, { title: 'LMS traffic', rows: [['out', `${formatBytes(out.bytes)} in ${formatCount(out.count)} moves`], ['in', `${formatBytes(back.bytes)} in ${formatCount(back.count)} moves`],
		...(dropped.count || again.count ? [['dropped', plural(dropped.count, 'tensor')], ['recomputed', plural(again.count, 'tensor')]] : []), ['from', `${formatTime(from)} for ${formatTime(trafficPlace.unit)}`]] });
}

function hoverOps(event) {
	const canvas = byId('ops'), box = canvas.getBoundingClientRect(), rows = Math.min(3, opSpans.threads.length), row = Math.min(rows - 1, Math.floor((event.clientY - box.top) / box.height * rows));
	const time = timeOf(event, canvas), reach = (state.t1 - state.t0) / box.width, { ops, strings } = capture;
	let best = NOTHING;
	opSpans.spans.each(time - reach, time + reach, 0, id => {
		if (Math.min(rows - 1, opSpans.rowOf.get(ops.thread[id])) === row && (best === NOTHING || ops.end[id] - ops.begin[id] < ops.end[best] - ops.begin[best])) best = id;
	});
	placeMark(byId('mark-hover'), time);
	if (hoverPause(event, time, canvas)) return;
	if (best === NOTHING) return hideTip();
	const list = [['time', formatTime(ops.end[best] - ops.begin[best])], ['from', formatTime(ops.begin[best])], ['thread', formatCount(ops.thread[best])]];
	if (ops.device[best]) list.splice(1, 0, ['on device', formatTime(ops.device[best])]);
	if (strings[ops.scope[best]]) list.push(['scope', strings[ops.scope[best]]]);
	showTip(event, { title: strings[ops.name[best]] || '(no op)', rows: list });
}

/* Shows the tip of a pause at [time]; returns whether there is one. */
function hoverPause(event, time, canvas) {
	const reach = (state.t1 - state.t0) / canvas.clientWidth, pause = capture.pauses.find(one => one.begin - reach <= time && time < one.begin + one.length + reach);
	if (pause) showTip(event, { title: 'Pause: Large Model Support makes a plan', rows: [['length', formatTime(pause.length)], ['from', formatTime(pause.begin)]] });
	return Boolean(pause);
}

function hoverSteps(event) {
	const time = timeOf(event, byId('steps')), step = stepAt(time);
	placeMark(byId('mark-hover'), time);
	if (!capture.ops.count && hoverPause(event, time, byId('steps'))) return;
	if (!step) return hideTip();
	const own = stepSums(step);
	showTip(event, { title: 'Step ' + formatCount(step.number), rows: [['duration', formatTime(step.length)], ['peak', formatBytes(own.peak)], ['allocated', `${formatBytes(own.bytes)} in ${formatCount(own.allocations)}`], ['left behind', formatBytes(own.left)]] });
}

function hoverMap(event) {
	const box = byId('map').getBoundingClientRect(), row = Math.min(mapPlace.rows - 1, Math.floor((event.clientY - box.top) / (mapPlace.tall + mapPlace.gap)));
	const at = (row + partOf(event, byId('map'))) * mapPlace.each, piece = map.pieces.find(one => one.at <= at && at < one.at + one.bytes);
	if (!piece) return hideTip();
	if (piece.id === NOTHING) return showTip(event, { title: 'Free', rows: [['size', formatBytes(piece.bytes)], ['address', '0x' + piece.address.toString(16)]] });
	showTip(event, describe(piece.id));
}

function watchChart() {
	const canvas = byId('chart');
	let drag = null;
	canvas.addEventListener('wheel', event => {
		event.preventDefault();
		if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / canvas.clientWidth);
		else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0025), partOf(event, canvas));
	}, { passive: false });
	canvas.addEventListener('pointerdown', event => {
		if (event.button) return;
		canvas.setPointerCapture(event.pointerId);
		drag = { x: event.clientX, t0: state.t0, t1: state.t1, moved: false, picks: event.shiftKey, from: timeOf(event, canvas) };
	});
	canvas.addEventListener('pointermove', event => {
		if (!drag) return hover(hoverChart, event);
		if (Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
		if (!drag.moved || drag.picks) return;
		canvas.classList.add('panning');
		leave();
		const by = (drag.x - event.clientX) / canvas.clientWidth * (drag.t1 - drag.t0);
		setView(drag.t0 + by, drag.t1 + by);
	});
	canvas.addEventListener('pointerup', event => {
		canvas.classList.remove('panning');
		if (drag && !drag.moved) setMoment(chart.moments[Math.min(chart.w - 1, Math.floor(partOf(event, canvas) * chart.w))]);
		if (drag && drag.moved && drag.picks) { const to = timeOf(event, canvas); setView(Math.min(drag.from, to), Math.max(drag.from, to)); }
		drag = null;
	});
	canvas.addEventListener('pointercancel', () => { drag = null; });
	canvas.addEventListener('dblclick', event => zoom(0.25, partOf(event, canvas)));
	const hovers = { chart: null, traffic: hoverTraffic, ops: hoverOps, steps: hoverSteps, map: hoverMap };
	for (const [id, show] of Object.entries(hovers)) {
		if (show) byId(id).addEventListener('pointermove', event => hover(show, event));
		byId(id).addEventListener('pointerleave', leave);
	}
	byId('steps').addEventListener('click', event => { const step = stepAt(timeOf(event, byId('steps'))); if (step) setView(step.begin, step.begin + step.length); });
	watchOverview();
}

function watchOverview() {
	const canvas = byId('overview');
	let from = null;
	const timeAt = event => partOf(event, canvas) * capture.end;
	canvas.addEventListener('pointerdown', event => { canvas.setPointerCapture(event.pointerId); from = timeAt(event); });
	canvas.addEventListener('pointermove', event => {
		const to = timeAt(event);
		if (from !== null && Math.abs(to - from) > capture.end / 200) setView(Math.min(from, to), Math.max(from, to));
	});
	canvas.addEventListener('pointerup', event => {
		const span = state.t1 - state.t0, at = timeAt(event);
		if (from !== null && Math.abs(at - from) <= capture.end / 200) setView(at - span / 2, at + span / 2);
		from = null;
	});
}

/* ---- keys ---- */

const KEYS = [
	[['ArrowLeft'], '\u2190 \u2192', 'pan', () => pan(-0.2)], [['ArrowRight'], '', '', () => pan(0.2)],
	[['ArrowUp', '+', '='], '\u2191 \u2193, + \u2212', 'zoom in, zoom out', () => zoom(0.6)], [['ArrowDown', '-'], '', '', () => zoom(1 / 0.6)],
	[['0', 'Home'], '0', 'the whole trace', () => setView(0, capture.end)],
	[['p', 'P'], 'P', 'the peak', showPeak],
	[['['], '[ ]', 'step before, step after', () => goStep(-1)], [[']'], '', '', () => goStep(1)],
	[[','], ', .', 'change before, change after', () => goChange(-1)], [['.'], '', '', () => goChange(1)],
	[['Enter'], 'Enter', 'look at the highest moment in view', () => { setMoment(highestInView()); say('In use: ' + formatBytes(model.inUse(state.moment))); }],
	[['/'], '/', 'search', () => byId('search').focus()],
	[['d', 'D'], 'D', 'next device', nextDevice],
	[['?'], '?', 'this list', () => byId('help').showModal()],
	[['Escape'], 'Esc', 'end the search', () => { byId('search').value = ''; setSearch(''); }],
];

/* Keys of the chart work wherever nothing else handles them. Arrows, Home and Enter work only on the chart, so that scrolling and buttons
 * keep working. */
function onKey(event) {
	if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open) return;
	const target = event.target, typing = target.tagName === 'INPUT' || target.tagName === 'SELECT';
	if (typing && event.key !== 'Escape') return;
	const needsChart = event.key.startsWith('Arrow') || event.key === 'Enter' || event.key === 'Home';
	if (needsChart && target.id !== 'chart') return;
	const entry = KEYS.find(one => one[0].includes(event.key));
	if (!entry) return;
	event.preventDefault();
	entry[3]();
}

/* Arrow keys in a row of buttons, one of which is selected. */
function roving(parent, choose) {
	parent.addEventListener('keydown', event => {
		const all = [...parent.children], at = all.indexOf(document.activeElement);
		const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
		if (next === undefined || at < 0) return;
		event.preventDefault();
		event.stopPropagation();
		const one = all[(next + all.length) % all.length];
		choose(one);
		one.focus();
	});
}

/* ---- start ---- */

function start() {
	const { ops } = capture;
	readColours();
	const inUseOf = device => capture.devices[device].peak;
	capture.devices.forEach((device, i) => {
		if (!device.peak || byId('devices').children.length === DEVICES) return;
		const button = make('button', { type: 'button', role: 'radio' }, device.name);
		button.dataset.device = i;
		button.addEventListener('click', () => setDevice(i));
		byId('devices').append(button);
	});
	roving(byId('devices'), button => setDevice(Number(button.dataset.device)));
	for (const [name, table] of Object.entries(TABLES)) {
		if (name === 'steps' && !capture.steps.length) continue;
		const tab = make('button', { type: 'button', role: 'tab', id: 'tab-' + name, 'aria-controls': 'table' }, table.label);
		tab.dataset.tab = name;
		tab.addEventListener('click', () => setTab(name));
		byId('tabs').append(tab);
	}
	roving(byId('tabs'), tab => setTab(tab.dataset.tab));
	const threads = new Map();
	for (let i = 0; i < ops.count; i++) if (!threads.has(ops.thread[i])) threads.set(ops.thread[i], threads.size);
	const order = Int32Array.from({ length: ops.count }, (_, i) => i).sort((a, b) => ops.begin[a] - ops.begin[b] || a - b);
	Object.assign(opSpans, { spans: new Spans(order, ops.begin, ops.end), rowOf: threads, threads: [...threads.keys()], busy: new Busy(order, ops, threads, Math.min(3, threads.size)),
		matches: id => state.test((capture.strings[ops.name[id]] + ' ' + capture.strings[ops.scope[id]]).toLowerCase()) });
	byId('lane-steps').hidden = !capture.steps.length;
	byId('lane-ops').hidden = !ops.count;
	for (const [, shown, meaning] of KEYS) if (shown) byId('keys').append(make('dt', {}, make('kbd', {}, shown)), make('dd', {}, meaning));
	fillNotes();

	byId('search').addEventListener('input', event => setSearch(event.target.value));
	byId('search').addEventListener('keydown', event => { if (event.key === 'Enter') byId('chart').focus(); });
	byId('group').addEventListener('change', event => setGroup(state.chosenBy = event.target.value));
	byId('zoom-in').addEventListener('click', () => zoom(0.5));
	byId('zoom-out').addEventListener('click', () => zoom(2));
	byId('zoom-all').addEventListener('click', () => setView(0, capture.end));
	byId('zoom-peak').addEventListener('click', showPeak);
	byId('moment-peak').addEventListener('click', () => setMoment(NOTHING));
	byId('help-open').addEventListener('click', () => byId('help').showModal());
	byId('help-close').addEventListener('click', () => byId('help').close());
	document.addEventListener('keydown', onKey);
	watchChart();
	new ResizeObserver(() => { draw(); draw('moment'); }).observe(byId('lanes'));
	matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); setGroup(state.by); });

	if (!capture.devices.length) {
		byId('notes').append(make('p', {}, 'The trace holds no allocations.'));
		return;
	}
	const busiest = capture.devices.reduce((best, _, i) => inUseOf(i) > inUseOf(best) ? i : best, 0);
	model = models[busiest] = new DeviceModel(capture, busiest);
	model.group('op', GROUPS);
	for (const by of ['op', 'scope', 'tag', 'size']) byId('group').querySelector(`[value=${by}]`).disabled = by !== 'op' && !capture.sites.some(site => site[by]);
	setTab('alive');
	setDevice(busiest);
}

start();

/* For tests and debugging: the contents of the page and its drawing times. */
window.headroom = { state, capture, setView, setMoment, busy: () => wanted.chart || wanted.moment, model: () => model, chart: () => chart,
	busyOps: (t0, t1) => opSpans.busy.rows.reduce((sum, _, row) => sum + opSpans.busy.between(row, t0, t1), 0), groupOfOp: i => opSpans.groupOf(capture.ops.name[i], capture.ops.scope[i]) };
