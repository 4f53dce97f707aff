/* page_data.js - the capture in the browser: decodes the data (page_writer.h), and answers the queries of the chart, the map and the tables.
 *
 * Two data structures make a million events fast:
 *   - The changes of a device are an array with the total after each change, and a pyramid of maxima over it. A column of the chart
 *     shows the highest moment of its time interval, so no peak is lost between two pixels.
 *   - Allocations are grouped by lifetime, in classes of powers of two. To find those of a window, a class is searched only as far
 *     back as its members can reach, and classes shorter than a pixel are skipped. */

const NOTHING = -1, NO_STEP_SUMS = { peak: 0, allocations: 0, bytes: 0, left: 0 };

function decodeBase64(text) {
	if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
	const raw = atob(text), bytes = new Uint8Array(raw.length);
	for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
	return bytes;
}

/* Names come from programs and may contain anything. They are only ever set as text. Characters that are invisible or change the
 * writing direction are replaced. */
function cleanText(text) {
	return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu, '\ufffd');
}

class Reader {
	constructor(bytes) {
		this.bytes = bytes;
		this.at = 0;
		this.decoder = new TextDecoder();
	}
	number() {
		let byte = this.bytes[this.at++];
		if (byte < 128) return byte;
		let value = byte & 127, unit = 128;
		do {
			byte = this.bytes[this.at++];
			value += (byte & 127) * unit;
			unit *= 128;
		} while (byte > 127);
		return value;
	}
	signed() {
		const value = this.number();
		return value % 2 ? -(value + 1) / 2 : value / 2;
	}
	string() {
		const length = this.number();
		const text = this.decoder.decode(this.bytes.subarray(this.at, this.at + length));
		this.at += length;
		return cleanText(text);
	}
	list(read) {
		const count = this.number(), items = new Array(count);
		for (let i = 0; i < count; i++) items[i] = read(i);
		return items;
	}
}

/* A growable array of numbers. */
class Column {
	constructor(type, capacity) {
		this.items = new type(capacity || 1024);
		this.count = 0;
	}
	push(value) {
		if (this.count === this.items.length) {
			const more = new this.items.constructor(2 * this.count);
			more.set(this.items);
			this.items = more;
		}
		this.items[this.count++] = value;
	}
	done() { return this.items.subarray(0, this.count); }
}

function readCapture(bytes) {
	const from = new Reader(bytes), capture = {};
	const version = from.number();
	if (version !== 6) throw new Error('data of version ' + version);
	capture.end = from.number();
	capture.wallMs = from.number();
	capture.lost = from.number();
	capture.skipped = from.number();
	capture.otherNames = from.number();
	capture.complete = from.number() === 1;
	capture.limited = from.number() === 1;
	capture.allocationCount = from.number();
	capture.opCount = from.number();
	capture.freeCount = from.number();
	capture.useCount = from.number();
	capture.stepCount = from.number();
	capture.moveCount = from.number();
	capture.refusalCount = from.number();
	capture.regionCount = from.number();
	capture.pauseCount = from.number();
	const strings = capture.strings = from.list(() => from.string());
	capture.devices = from.list(() => ({ name: from.string(), limit: from.number(), page: from.number(), peak: from.number(), peakTime: from.number(), endBytes: from.number() }));
	capture.allocators = from.list(() => ({ name: from.string(), kind: from.string(), device: from.number(), limit: from.number(), begin: from.number(), end: from.number() }));
	capture.sites = from.list(() => ({
		op: strings[from.number()], scope: strings[from.number()], tag: strings[from.number()], shape: strings[from.number()], dtype: from.string(),
		allocator: from.number(), stream: from.number(), stack: from.list(() => strings[from.number()]),
		count: from.number(), bytes: from.number(), lifetime: from.number(), largest: from.number(), liveBytes: from.number(),
	}));
	capture.realSites = capture.sites.length;
	for (const site of capture.sites) site.device = capture.allocators[site.allocator].device;
	capture.devices.forEach((device, i) => capture.sites.push({
		op: '(brief and small)', scope: '', tag: '', shape: '', dtype: '?', allocator: NOTHING, stream: 0, stack: [], device: i,
		count: 0, bytes: 0, lifetime: 0, largest: 0, liveBytes: 0, rest: true,
	}));
	readChanges(from, capture);
	for (let i = 0; i < capture.site.length; i++) if (capture.site[i] >= capture.realSites) capture.sites[capture.site[i]].occurs = true;
	capture.opTotals = from.list(() => ({ op: strings[from.number()], runs: from.number(), ns: from.number(), deviceNs: from.number() }));
	readOps(from, capture);
	const summed = capture.devicesInSteps = from.number();
	capture.steps = from.list(() => ({
		number: from.number(), begin: from.number(), length: from.number(),
		devices: capture.devices.slice(0, summed).map(() => ({ peak: from.number(), allocations: from.number(), bytes: from.number(), left: from.number() })),
	}));
	readMoves(from, capture);
	capture.refusals = from.list(() => ({ time: from.number(), bytes: from.number(), site: from.number() - 1 }));
	capture.regions = from.list(() => {
		const begin = from.number(), length = from.number();
		return { begin, end: length ? begin + length - 1 : Infinity, address: from.number(), bytes: from.number(), allocator: from.number() };
	});
	capture.pauses = from.list(() => ({ begin: from.number(), length: from.number() }));
	splitBySize(capture);
	return capture;
}

const hasName = site => Boolean(site.op || site.scope || site.tag);
const sizeClass = bytes => bytes > 0 ? Math.floor(Math.log2(bytes)) : 0;

/* If nothing on a device has a name, allocations differ only in size, so each site is split by powers of two. Allocations that the page
 * does not contain individually stay with the original site, so sums do not change. */
function splitBySize(capture) {
	const { sites, site, bytes, begin, finish, realSites } = capture, parts = new Map();
	const named = new Set(sites.slice(0, realSites).filter(one => one.count && hasName(one)).map(one => one.device));
	for (let id = 0; id < site.length; id++) {
		const whole = sites[site[id]];
		if (site[id] >= realSites || named.has(whole.device)) continue;
		const power = sizeClass(bytes[id]), key = site[id] * 64 + power;
		if (!parts.has(key)) {
			parts.set(key, sites.length);
			sites.push({ ...whole, size: `${formatBytes(2 ** power)} to ${formatBytes(2 ** (power + 1))}`, count: 0, bytes: 0, lifetime: 0, largest: 0, liveBytes: 0 });
		}
		const part = sites[parts.get(key)], lifetime = Math.min(finish[id], capture.end) - begin[id];
		for (const [one, sign] of [[part, 1], [whole, -1]]) {
			one.count += sign;
			one.bytes += sign * bytes[id];
			one.lifetime += sign * lifetime;
			if (finish[id] === Infinity) one.liveBytes += sign * bytes[id];
		}
		part.largest = Math.max(part.largest, bytes[id]);
		site[id] = parts.get(key);
	}
}

function readChanges(from, capture) {
	const guess = 2 * capture.allocationCount + 16;
	const times = new Column(Float64Array, guess), subjects = new Column(Int32Array, guess);
	const bytes = new Column(Float64Array, guess / 2), slack = new Column(Uint32Array, guess / 2), site = new Column(Int32Array, guess / 2);
	const address = new Column(Float64Array, guess / 2), begin = new Column(Float64Array, guess / 2), end = new Column(Float64Array, guess / 2);
	let time = 0, place = 0;
	for (;;) {
		const code = from.number();
		if (code > bytes.count) break;
		time += from.number();
		const subject = code ? bytes.count - code : bytes.count;
		if (code) {
			end.items[subject] = time;
		} else {
			bytes.push(from.number());
			slack.push(from.number());
			site.push(from.number());
			address.push(place += from.signed());
			begin.push(time);
			end.push(Infinity);
		}
		times.push(time);
		subjects.push(subject);
	}
	capture.changes = { times: times.done(), subjects: subjects.done() };
	capture.bytes = bytes.done();
	capture.slack = slack.done();
	capture.site = site.done();
	capture.address = address.done();
	capture.begin = begin.done();
	capture.finish = end.done();
}

function readOps(from, capture) {
	const count = from.number();
	const ops = capture.ops = { count, begin: new Float64Array(count), end: new Float64Array(count), device: new Float64Array(count),
		name: new Int32Array(count), scope: new Int32Array(count), thread: new Int32Array(count) };
	let time = 0;
	for (let i = 0; i < count; i++) {
		time += from.signed();
		ops.begin[i] = time;
		ops.end[i] = time + from.number();
		ops.device[i] = from.number();
		ops.name[i] = from.number();
		ops.scope[i] = from.number();
		ops.thread[i] = from.number();
	}
}

/* Reads the moves of each device and kind, with prefix sums. */
function readMoves(from, capture) {
	const fresh = () => ({ times: new Column(Float64Array, 64), sums: new Column(Float64Array, 64), counts: new Column(Float64Array, 64), bytes: 0, count: 0 });
	const devices = capture.devices.map(() => Array.from({ length: 6 }, fresh));
	let time = 0;
	capture.moveRecords = 0;
	for (let count; (count = from.number());) {
		const which = from.number() - 1;
		time += from.signed();
		const bytes = from.number(), site = from.number() - 1, device = site < 0 ? 0 : capture.sites[site].device;
		const kind = devices[device][which];
		capture.moveRecords++;
		kind.bytes += bytes;
		kind.count += count;
		kind.times.push(time);
		kind.sums.push(kind.bytes);
		kind.counts.push(kind.count);
	}
	for (const kinds of devices) for (const kind of kinds) for (const key of ['times', 'sums', 'counts']) kind[key] = kind[key].done();
	capture.moves = devices.map(kinds => ({ out: kinds[0], in: kinds[1], inside: kinds[2], stitch: kinds[3], dropped: kinds[4], again: kinds[5] }));
}

/* The first index of a sorted array whose value is at least [value]. */
function lowerBound(array, value, from = 0, to = array.length) {
	while (from < to) {
		const middle = (from + to) >>> 1;
		if (array[middle] < value) from = middle + 1; else to = middle;
	}
	return from;
}

/* Sums of the moves in [t0, t1): { bytes, count }. */
function movesBetween(kind, t0, t1) {
	const i = lowerBound(kind.times, t0), j = lowerBound(kind.times, t1, i);
	if (i === j) return { bytes: 0, count: 0 };
	return { bytes: kind.sums[j - 1] - (i ? kind.sums[i - 1] : 0), count: kind.counts[j - 1] - (i ? kind.counts[i - 1] : 0) };
}

/* An index of intervals by time. [ids] are sorted by begin. */
class Spans {
	constructor(ids, begin, end) {
		const classOf = id => { const length = end[id] - begin[id]; return length === Infinity ? 63 : length < 1 ? 0 : Math.min(62, Math.floor(Math.log2(length))); };
		const counts = new Int32Array(64);
		for (let i = 0; i < ids.length; i++) counts[classOf(ids[i])]++;
		this.begin = begin;
		this.end = end;
		this.classes = [];
		const place = [];
		for (let i = 0; i < 64; i++) {
			place[i] = { reach: i === 63 ? Infinity : 2 ** (i + 1), ids: new Int32Array(counts[i]), count: 0 };
			if (counts[i]) this.classes.push(place[i]);
		}
		for (let i = 0; i < ids.length; i++) { const one = place[classOf(ids[i])]; one.ids[one.count++] = ids[i]; }
	}
	lower(ids, time) {
		let from = 0, to = ids.length;
		while (from < to) {
			const middle = (from + to) >>> 1;
			if (this.begin[ids[middle]] < time) from = middle + 1; else to = middle;
		}
		return from;
	}
	/* Visits the intervals that overlap [t0, t1] and can last longer than [least], class by class. */
	each(t0, t1, least, visit) {
		for (const one of this.classes) {
			if (one.reach <= least) continue;
			for (let i = this.lower(one.ids, t0 - one.reach); i < one.ids.length && this.begin[one.ids[i]] <= t1; i++)
				if (this.end[one.ids[i]] >= t0) visit(one.ids[i]);
		}
	}
}

/* Total run time of the ops that began in a time interval, per row. [order] lists ops by begin. */
class Busy {
	constructor(order, ops, rowOf, rows) {
		const columns = Array.from({ length: rows }, () => ({ begins: new Column(Float64Array), sums: new Column(Float64Array), sum: 0 }));
		for (const id of order) {
			const row = columns[Math.min(rows - 1, rowOf.get(ops.thread[id]))];
			row.begins.push(ops.begin[id]);
			row.sums.push(row.sum += ops.end[id] - ops.begin[id]);
		}
		this.rows = columns.map(({ begins, sums }) => ({ begins: begins.done(), sums: sums.done() }));
	}
	between(row, t0, t1) {
		const { begins, sums } = this.rows[row], first = lowerBound(begins, t0), last = lowerBound(begins, t1, first);
		return last > first ? sums[last - 1] - (first ? sums[first - 1] : 0) : 0;
	}
}

const PYRAMID = 32, CHECKPOINT = 512, COLOURS = 10;
const TAG_COLOURS = { weights: 0, gradients: 1, activations: 2, optimizer: 4, scratch: 7 };

/* One device: its changes, the bytes in use after each change, and the live allocations at any time. */
class DeviceModel {
	constructor(capture, index) {
		this.capture = capture;
		this.index = index;
		this.device = capture.devices[index];
		const { times, subjects } = capture.changes, { site, sites } = capture;
		const own = i => sites[site[subjects[i]]].device === index;
		let count = 0;
		for (let i = 0; i < subjects.length; i++) if (own(i)) count++;
		this.count = count;
		this.times = new Float64Array(count);
		this.subjects = new Int32Array(count);
		this.total = new Float64Array(count);
		this.first = new Int32Array(capture.bytes.length).fill(NOTHING); /* by allocation: the change that allocates it */
		this.last = new Int32Array(capture.bytes.length).fill(count);    /* the change that frees it */
		const ids = new Column(Int32Array);
		let total = 0, at = 0;
		for (let i = 0; i < subjects.length; i++) {
			if (!own(i)) continue;
			const subject = subjects[i], frees = this.first[subject] !== NOTHING;
			total += frees ? -capture.bytes[subject] : capture.bytes[subject];
			if (frees) this.last[subject] = at;
			else this.first[subject] = at, ids.push(subject);
			this.times[at] = times[i];
			this.subjects[at] = subject;
			this.total[at++] = total;
		}
		this.ids = ids.done();
		this.spans = new Spans(this.ids, capture.begin, capture.finish);
		this.buildPyramid();
		this.peakChange = this.highest(0, count);
		this.peak = this.peakChange === NOTHING ? 0 : this.total[this.peakChange];
		this.regions = capture.regions.filter(region => capture.allocators[region.allocator].device === index);
		this.limits = this.findLimits();
	}

	/* The device's limit over time: the sum of the limits of the allocators in use, or the device's own limit if that is lower. */
	findLimits() {
		const marks = [], end = this.capture.end, steps = [];
		for (const { device, limit, begin, end } of this.capture.allocators)
			if (device === this.index && end >= begin && (begin || end)) marks.push([begin, limit, 1], [end, -limit, -1]);
		marks.sort((a, b) => a[0] - b[0] || b[2] - a[2]);
		let sum = 0, blind = 0, there = 0, from = 0;
		const add = to => {
			const limit = Math.min(there && !blind ? sum : Infinity, this.device.limit || Infinity), before = steps[steps.length - 1];
			if (to <= from || limit === Infinity) return;
			if (before && before.limit === limit && before.to === from) before.to = to;
			else steps.push({ from, to, limit });
		};
		for (const [time, limit, way] of marks) {
			add(time);
			from = Math.max(from, time);
			sum += limit;
			there += way;
			if (!limit) blind += way;
		}
		add(end);
		return steps;
	}

	limitAt(time) {
		const step = this.limits.find(({ from, to }) => from <= time && time <= to);
		return step ? step.limit : 0;
	}

	buildPyramid() {
		this.levels = [];
		for (let below = null, length = this.count; length > PYRAMID;) {
			const level = new Int32Array(Math.ceil(length / PYRAMID));
			for (let i = 0; i < level.length; i++) {
				let best = NOTHING;
				for (let j = i * PYRAMID; j < Math.min(length, (i + 1) * PYRAMID); j++) {
					const one = below ? below[j] : j;
					if (best === NOTHING || this.total[one] > this.total[best]) best = one;
				}
				level[i] = best;
			}
			this.levels.push(level);
			below = level;
			length = level.length;
		}
	}

	/* The first change in [from, to) with the most bytes in use after it; NOTHING for an empty range. */
	highest(from, to, level = NOTHING) {
		let best = NOTHING;
		const values = level === NOTHING ? null : this.levels[level];
		const take = i => { const one = values ? values[i] : i; if (best === NOTHING || this.total[one] > this.total[best]) best = one; };
		const above = level + 1 < this.levels.length;
		if (!above || to - from <= 2 * PYRAMID) {
			for (let i = from; i < to; i++) take(i);
			return best;
		}
		const i = Math.ceil(from / PYRAMID), j = Math.floor(to / PYRAMID);
		for (let k = from; k < i * PYRAMID; k++) take(k);
		const middle = this.highest(i, j, level + 1);
		if (middle !== NOTHING && (best === NOTHING || this.total[middle] > this.total[best])) best = middle;
		for (let k = j * PYRAMID; k < to; k++) take(k);
		return best;
	}

	/* The last change at or before [time]; NOTHING: none. */
	changeAt(time) {
		let from = 0, to = this.count;
		while (from < to) {
			const middle = (from + to) >>> 1;
			if (this.times[middle] <= time) from = middle + 1; else to = middle;
		}
		return from - 1;
	}

	inUse(change) { return change < 0 ? 0 : this.total[change]; }

	/* Allocations that are live after a change, oldest first. */
	live(change) {
		const found = [];
		if (change < 0) return found;
		const time = this.times[change];
		this.spans.each(time, time, 0, id => { if (this.first[id] <= change && change < this.last[id]) found.push(id); });
		return found.sort((a, b) => a - b);
	}

	/* How many parts of scope names to use so that there are at most [most] groups: "gpt/block0" instead of "gpt/block0/attention/q". */
	scopeDepth(most) {
		const names = new Set(this.capture.sites.filter(site => site.device === this.index && site.count).map(site => site.scope));
		let depth = 1;
		for (; depth < 16; depth++) if (new Set([...names].map(name => name.split('/', depth + 1).join('/'))).size > most) break;
		return depth;
	}

	/* Groups sites by op, scope, tag or size: the largest groups at the peak, and a last group for all others. Long-lived groups come
	 * first, at the bottom of the chart. */
	group(by, most) {
		const depth = by === 'scope' ? this.scopeDepth(most) : 0;
		const keyOf = site => site.rest ? site.op : by === 'scope' ? site.scope.split('/', depth).join('/') || '(no scope)' : by === 'tag' ? site.tag || '(no tag)' : by === 'size' ? site.size || '(other sizes)' : site.op || '(no op)';
		this.scopeKey = scope => scope.split('/', depth).join('/');
		const keys = new Map(), { capture } = this;
		for (const site of capture.sites) {
			if (site.device !== this.index || !(site.rest ? site.occurs : site.count)) continue;
			const key = keyOf(site), now = keys.get(key) || { name: key, atPeak: 0, area: 0, bytes: 0, rest: site.rest === true, none: !site[by] };
			now.area += site.count ? site.bytes / site.count * site.lifetime : 0;
			now.bytes += site.bytes;
			keys.set(key, now);
		}
		for (const id of this.live(this.peakChange)) keys.get(keyOf(capture.sites[capture.site[id]])).atPeak += capture.bytes[id];
		const area = Math.max(1, ...[...keys.values()].map(key => key.area));
		const rank = key => key.atPeak / Math.max(1, this.peak) + 0.25 * key.area / area;
		const order = [...keys.values()].sort((a, b) => rank(b) - rank(a));
		const groups = order.length <= most ? order : order.slice(0, most - 1);
		const stay = group => group.area / Math.max(1, group.bytes);
		groups.sort((a, b) => stay(b) - stay(a));
		const places = new Map(groups.map((group, i) => [group.name, i]));
		if (order.length > most) groups.push({ name: 'all others', others: order.length - most + 1 });
		this.giveColours(by, groups);
		this.by = by;
		this.groups = groups;
		this.groupOf = Uint8Array.from(capture.sites, site => places.has(keyOf(site)) ? places.get(keyOf(site)) : groups.length - 1);
		this.buildCheckpoints();
	}

	/* Assigns a colour number to each group; NOTHING is grey. The runtime's own tags have fixed colours, so that weights look the same on
	 * each device and in each page. */
	giveColours(by, groups) {
		const fixed = group => by === 'tag' && Object.hasOwn(TAG_COLOURS, group.name) ? TAG_COLOURS[group.name] : NOTHING;
		const taken = new Set(groups.map(fixed)), others = Array.from({ length: COLOURS }, (_, i) => i).filter(i => !taken.has(i));
		let next = 0;
		for (const group of groups) {
			const grey = group.others || group.rest || (by === 'tag' && group.none);
			group.colour = grey ? NOTHING : fixed(group) !== NOTHING ? fixed(group) : others[next++ % others.length];
		}
	}

	/* The default grouping: by tag if there are several tags, because tags say more than ops; by size if nothing has a name. */
	firstGrouping() {
		if (this.capture.sites.some(site => site.device === this.index && site.count && site.size)) return 'size';
		const tags = new Set();
		for (const site of this.capture.sites) if (site.device === this.index && site.count && site.tag) tags.add(site.tag);
		return tags.size > 1 ? 'tag' : 'op';
	}

	/* Stores the bytes in use of each group before every 512th change. */
	buildCheckpoints() {
		const size = this.groups.length, { bytes, site } = this.capture;
		this.checkpoints = new Float64Array(size * (Math.floor(this.count / CHECKPOINT) + 1));
		const now = new Float64Array(size);
		for (let i = 0; i < this.count; i++) {
			if (i % CHECKPOINT === 0) this.checkpoints.set(now, i / CHECKPOINT * size);
			const id = this.subjects[i];
			now[this.groupOf[site[id]]] += this.first[id] === i ? bytes[id] : -bytes[id];
		}
	}

	/* Writes the bytes in use of each group after a change to [out] at [place]. */
	groupSums(change, out, place) {
		const size = this.groups.length, { bytes, site } = this.capture;
		out.fill(0, place, place + size);
		if (change < 0) return;
		const base = Math.floor(change / CHECKPOINT);
		for (let g = 0; g < size; g++) out[place + g] = this.checkpoints[base * size + g];
		for (let i = base * CHECKPOINT; i <= change; i++) {
			const id = this.subjects[i];
			out[place + this.groupOf[site[id]]] += this.first[id] === i ? bytes[id] : -bytes[id];
		}
	}

	/* For each of [width] columns of [t0, t1): the change with the most bytes in use after it. */
	columns(t0, t1, width) {
		const moments = new Int32Array(width), unit = (t1 - t0) / width;
		let from = lowerBound(this.times, t0);
		for (let c = 0; c < width; c++) {
			const to = c + 1 === width ? lowerBound(this.times, t1, from) : lowerBound(this.times, t0 + (c + 1) * unit, from);
			const best = this.highest(from, to);
			moments[c] = best === NOTHING || (from > 0 && this.total[from - 1] >= this.total[best]) ? from - 1 : best;
			from = to;
		}
		return moments;
	}

	/* The memory that the device's allocators had mapped at a moment, with adjacent pieces joined: [{ address, bytes }]. If that is
	 * unknown, the ranges that the blocks span; if the page omits some regions, at least the blocks. */
	held(time, live) {
		const pieces = this.regions.filter(region => region.begin <= time && time < region.end && region.bytes > 0).map(({ address, bytes }) => ({ address, bytes }));
		const guess = !pieces.length;
		if (guess || this.capture.regions.length < this.capture.regionCount) {
			const { address, bytes, site, sites } = this.capture;
			for (const id of live) if (!sites[site[id]].rest) pieces.push({ address: address[id], bytes: bytes[id], guess });
		}
		pieces.sort((a, b) => a.address - b.address);
		const joined = [];
		for (const piece of pieces) {
			const last = joined[joined.length - 1];
			/* Without regions, a gap of up to 64 MiB counts as free memory of the allocator. */
			if (last && piece.address <= last.address + last.bytes + (piece.guess ? 67108864 : 0)) last.bytes = Math.max(last.bytes, piece.address + piece.bytes - last.address);
			else joined.push({ ...piece });
		}
		return joined;
	}

	/* The blocks and holes that the map draws for a moment. */
	map(change) {
		const { address, bytes, site, sites } = this.capture;
		const live = this.live(change).filter(id => !sites[site[id]].rest).sort((a, b) => address[a] - address[b]);
		const time = change < 0 ? 0 : this.times[change];
		const held = this.held(time, live), pieces = [];
		let place = 0, next = 0, used = 0, free = 0, largest = 0;
		const hole = (region, from, to) => {
			if (to <= from) return;
			pieces.push({ id: NOTHING, at: place + from - region.address, bytes: to - from, address: from });
			free += to - from;
			largest = Math.max(largest, to - from);
		};
		for (const region of held) {
			let at = region.address;
			const end = region.address + region.bytes;
			while (next < live.length && address[live[next]] < region.address) next++;
			for (; next < live.length && address[live[next]] < end; next++) {
				const id = live[next];
				hole(region, at, address[id]);
				pieces.push({ id, at: place + address[id] - region.address, bytes: bytes[id], address: address[id] });
				used += bytes[id];
				at = Math.max(at, address[id] + bytes[id]);
			}
			hole(region, at, end);
			place += region.bytes;
		}
		return { pieces, held, heldBytes: place, used, free, largest, guessed: held.length > 0 && held[0].guess === true };
	}
}
